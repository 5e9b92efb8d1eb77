; A loop of known length (execute.ll).

declare i32 @gf_execute(ptr, ptr, ptr)
declare i32 @gf_signals(ptr)

; Words: length, reverse, code, its registers, their number, table of @bind_turn, iterations
; between two looks at signals less 1 (a power of 2, less 1).
define i32 @gf_scan(ptr %words, ptr %registers, ptr %state) {
entry:
  %length = load i64, ptr %words
  %reverse.at = getelementptr i64, ptr %words, i64 1
  %reverse = load i64, ptr %reverse.at
  %code.at = getelementptr i64, ptr %words, i64 2
  %code = load ptr, ptr %code.at
  %own.at = getelementptr i64, ptr %words, i64 3
  %own = load ptr, ptr %own.at
  %count.at = getelementptr i64, ptr %words, i64 4
  %count = load i64, ptr %count.at
  %table.at = getelementptr i64, ptr %words, i64 5
  %table = load ptr, ptr %table.at
  %mask.at = getelementptr i64, ptr %words, i64 6
  %mask = load i64, ptr %mask.at
  %backward = icmp ne i64 %reverse, 0
  %last = add i64 %length, -1
  br label %look
look:
  %turn = phi i64 [ 0, %entry ], [ %next, %checked ]
  %more = icmp slt i64 %turn, %length
  br i1 %more, label %body, label %end
body:
  %mirrored = sub i64 %last, %turn
  %element = select i1 %backward, i64 %mirrored, i64 %turn
  call void @bind_turn(
      ptr %own, i64 %count, ptr %table, i64 %turn, i64 %element, ptr %registers)
  %status = call i32 @gf_execute(ptr %code, ptr %own, ptr %state)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %next.turn, label %failed
next.turn:
  %next = add i64 %turn, 1
  %masked = and i64 %next, %mask
  %due = icmp eq i64 %masked, 0
  br i1 %due, label %check, label %checked
check:
  %signal = call i32 @gf_signals(ptr %state)
  %quiet = icmp eq i32 %signal, 0
  br i1 %quiet, label %checked, label %failed
checked:
  br label %look
failed:
  ret i32 -1
end:
  ret i32 0
}
