; Parts of a loop whose turns do not see each other, on several threads (execute.ll).

declare i32 @gf_scan(ptr, ptr, ptr)
declare void @gf_dispatch(ptr, ptr, i64, i64)

; Words: the number of parts, the registers and the state of the call, which this writes for
; @parts, and for each part the words of its @gf_scan. A part has code and memory of its own.
define i32 @gf_apart(ptr %words, ptr %registers, ptr %state) {
  %count = load i64, ptr %words
  %registers.at = getelementptr i64, ptr %words, i64 1
  store ptr %registers, ptr %registers.at
  %state.at = getelementptr i64, ptr %words, i64 2
  store ptr %state, ptr %state.at
  call void @gf_dispatch(ptr @parts, ptr %words, i64 %count, i64 1)
  %stopped.at = getelementptr i64, ptr %state, i64 2
  %stopped = load i64, ptr %stopped.at
  %goes.on = icmp eq i64 %stopped, 0
  %status = select i1 %goes.on, i32 0, i32 -1
  ret i32 %status
}

; Parts %low to %high; words of @gf_apart.
define internal void @parts(ptr %words, i64 %low, i64 %high) {
entry:
  %registers.at = getelementptr i64, ptr %words, i64 1
  %registers = load ptr, ptr %registers.at
  %state.at = getelementptr i64, ptr %words, i64 2
  %state = load ptr, ptr %state.at
  %parts = getelementptr i64, ptr %words, i64 3
  br label %look
look:
  %k = phi i64 [ %low, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %end
one:
  %part.at = getelementptr ptr, ptr %parts, i64 %k
  %part = load ptr, ptr %part.at
  %status = call i32 @gf_scan(ptr %part, ptr %registers, ptr %state)
  %next = add i64 %k, 1
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %look, label %stop
stop:
  %stopped.at = getelementptr i64, ptr %state, i64 2
  store atomic i64 1, ptr %stopped.at monotonic, align 8
  br label %end
end:
  ret void
}
