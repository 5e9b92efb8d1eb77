; Memory of threads: as many slots as threads, with flags of those that are taken, one in 64 bytes.

; A slot of memory that no other thread uses.
define internal i64 @claim(ptr %taken, i64 %count) {
entry:
  ; Look at each slot, from the first.
  br label %look
look:
  ; Take slot k if it is free: others that try at this moment see that it is taken.
  %k = phi i64 [ 0, %entry ], [ %wrapped, %next ]
  %offset = mul i64 %k, 8
  %at = getelementptr i64, ptr %taken, i64 %offset
  %pair = cmpxchg ptr %at, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %end, label %next
next:
  ; Somebody has it. There are as many slots as threads: one is free soon.
  call void @pause()
  %k.next = add i64 %k, 1
  %wrapped = srem i64 %k.next, %count
  br label %look
end:
  ; It is ours until it is released.
  ret i64 %k
}

; Gives a slot back, behind all that was written to it.
define internal void @release(ptr %taken, i64 %slot) {
  %offset = mul i64 %slot, 8
  %at = getelementptr i64, ptr %taken, i64 %offset
  store atomic i64 0, ptr %at release, align 8
  ret void
}
