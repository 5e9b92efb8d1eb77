; A loop of known length (execute.ll).

declare i32 @gf_execute(ptr, ptr, ptr)
declare i32 @gf_signals(ptr)

; Arguments: length, reverse, code, its registers, their number, table of @bind_iteration,
; mask: iterations between two polls for signals, a power of 2, less 1.
define i32 @gf_scan(ptr %arguments, ptr %registers, ptr %state) {
entry:
  %length = load i64, ptr %arguments
  %reverse.at = getelementptr i64, ptr %arguments, i64 1
  %reverse = load i64, ptr %reverse.at
  %code.at = getelementptr i64, ptr %arguments, i64 2
  %code = load ptr, ptr %code.at
  %own.at = getelementptr i64, ptr %arguments, i64 3
  %own = load ptr, ptr %own.at
  %count.at = getelementptr i64, ptr %arguments, i64 4
  %count = load i64, ptr %count.at
  %table.at = getelementptr i64, ptr %arguments, i64 5
  %table = load ptr, ptr %table.at
  %mask.at = getelementptr i64, ptr %arguments, i64 6
  %mask = load i64, ptr %mask.at
  %backward = icmp ne i64 %reverse, 0
  %last = add i64 %length, -1
  br label %look
look:
  %iteration = phi i64 [ 0, %entry ], [ %next, %checked ]
  %more = icmp slt i64 %iteration, %length
  br i1 %more, label %body, label %end
body:
  %mirrored = sub i64 %last, %iteration
  %element = select i1 %backward, i64 %mirrored, i64 %iteration
  call void @bind_iteration(
      ptr %own, i64 %count, ptr %table, i64 %iteration, i64 %element, ptr %registers)
  %status = call i32 @gf_execute(ptr %code, ptr %own, ptr %state)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %next.iteration, label %failed
next.iteration:
  %next = add i64 %iteration, 1
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
