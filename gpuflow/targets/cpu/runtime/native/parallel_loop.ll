; A loop of independent iterations on several threads, in chunks (execute.ll).

declare i32 @gf_scan(ptr, ptr, ptr)
declare void @gf_dispatch(ptr, ptr, i64, i64)

; Arguments: the number of chunks, the registers and the state of the call, which this writes for
; @chunks, and for each chunk those of its @gf_scan. A chunk has separate code and memory.
define i32 @gf_parallel_loop(ptr %arguments, ptr %registers, ptr %state) {
  %count = load i64, ptr %arguments
  %registers.at = getelementptr i64, ptr %arguments, i64 1
  store ptr %registers, ptr %registers.at
  %state.at = getelementptr i64, ptr %arguments, i64 2
  store ptr %state, ptr %state.at
  call void @gf_dispatch(ptr @chunks, ptr %arguments, i64 %count, i64 1)
  %stopped.at = getelementptr i64, ptr %state, i64 2
  %stopped = load i64, ptr %stopped.at
  %goes.on = icmp eq i64 %stopped, 0
  %status = select i1 %goes.on, i32 0, i32 -1
  ret i32 %status
}

; Chunks %low to %high; arguments of @gf_parallel_loop.
define internal void @chunks(ptr %arguments, i64 %low, i64 %high) {
entry:
  %registers.at = getelementptr i64, ptr %arguments, i64 1
  %registers = load ptr, ptr %registers.at
  %state.at = getelementptr i64, ptr %arguments, i64 2
  %state = load ptr, ptr %state.at
  %chunks = getelementptr i64, ptr %arguments, i64 3
  br label %look
look:
  %k = phi i64 [ %low, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %end
one:
  %chunk.at = getelementptr ptr, ptr %chunks, i64 %k
  %chunk = load ptr, ptr %chunk.at
  %status = call i32 @gf_scan(ptr %chunk, ptr %registers, ptr %state)
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
