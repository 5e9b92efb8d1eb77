; A while loop (execute.ll).

declare i32 @gf_execute(ptr, ptr, ptr)
declare i32 @gf_signals(ptr)

; Arguments: condition's code, its registers, their number, their locations; body's code, its
; registers, their number, table of @bind_iteration; location of the flag (2); copies, their table
; (locations of the output, of the carry after no iteration and after an even number of them, and
; bytes); mask as in scan.ll.
define i32 @gf_while(ptr %arguments, ptr %registers, ptr %state) {
entry:
  %code0 = load ptr, ptr %arguments
  %own0.at = getelementptr i64, ptr %arguments, i64 1
  %own0 = load ptr, ptr %own0.at
  %count0.at = getelementptr i64, ptr %arguments, i64 2
  %count0 = load i64, ptr %count0.at
  %locations0.at = getelementptr i64, ptr %arguments, i64 3
  %locations0 = load ptr, ptr %locations0.at
  %code.at = getelementptr i64, ptr %arguments, i64 4
  %code = load ptr, ptr %code.at
  %own.at = getelementptr i64, ptr %arguments, i64 5
  %own = load ptr, ptr %own.at
  %count.at = getelementptr i64, ptr %arguments, i64 6
  %count = load i64, ptr %count.at
  %table.at = getelementptr i64, ptr %arguments, i64 7
  %table = load ptr, ptr %table.at
  %flag.at = getelementptr i64, ptr %arguments, i64 8
  %flag = call ptr @location(ptr %flag.at, ptr %registers)
  %copies.at = getelementptr i64, ptr %arguments, i64 10
  %copies = load i64, ptr %copies.at
  %rows.at = getelementptr i64, ptr %arguments, i64 11
  %rows = load ptr, ptr %rows.at
  %mask.at = getelementptr i64, ptr %arguments, i64 12
  %mask = load i64, ptr %mask.at
  call void @bind(ptr %own0, i64 %count0, ptr %locations0, i64 2, ptr %registers)
  %status0 = call i32 @gf_execute(ptr %code0, ptr %own0, ptr %state)
  %fine0 = icmp eq i32 %status0, 0
  br i1 %fine0, label %look, label %failed
look:
  %iteration = phi i64 [ 0, %entry ], [ %next, %checked ]
  %going = load volatile i8, ptr %flag
  %more = icmp ne i8 %going, 0
  br i1 %more, label %body, label %over
body:
  call void @bind_iteration(ptr %own, i64 %count, ptr %table, i64 %iteration, i64 0, ptr %registers)
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
over:
  ; After an odd number of iterations, carries are in the outputs. Else they are copied.
  %odd = and i64 %iteration, 1
  %is.odd = icmp ne i64 %odd, 0
  br i1 %is.odd, label %end, label %copy
copy:
  %is.none = icmp eq i64 %iteration, 0
  %column = select i1 %is.none, i64 2, i64 4
  br label %next.copy
next.copy:
  %k = phi i64 [ 0, %copy ], [ %k.next, %one ]
  %left = icmp slt i64 %k, %copies
  br i1 %left, label %one, label %end
one:
  %row.offset = mul i64 %k, 7
  %row = getelementptr i64, ptr %rows, i64 %row.offset
  %target = call ptr @location(ptr %row, ptr %registers)
  %source.at = getelementptr i64, ptr %row, i64 %column
  %source = call ptr @location(ptr %source.at, ptr %registers)
  %bytes.at = getelementptr i64, ptr %row, i64 6
  %bytes = load i64, ptr %bytes.at
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  %k.next = add i64 %k, 1
  br label %next.copy
failed:
  ret i32 -1
end:
  ret i32 0
}
