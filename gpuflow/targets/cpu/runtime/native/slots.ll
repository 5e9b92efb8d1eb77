; Scratch memory of threads: as many slots as threads, with a flag for each that is claimed. Flags
; are 64 bytes apart, on separate cache lines.

; Claim a slot that no other thread uses.
define internal i64 @claim(ptr %taken, i64 %count) {
entry:
  ; Try each slot, from the first.
  br label %look
look:
  ; Claim slot k if it is free, by an atomic exchange.
  %k = phi i64 [ 0, %entry ], [ %wrapped, %next ]
  %offset = mul i64 %k, 8
  %at = getelementptr i64, ptr %taken, i64 %offset
  %pair = cmpxchg ptr %at, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %end, label %next
next:
  ; It is claimed. There are as many slots as threads, so one becomes free soon.
  call void @pause()
  %k.next = add i64 %k, 1
  %wrapped = srem i64 %k.next, %count
  br label %look
end:
  ; The slot is claimed until it is released.
  ret i64 %k
}

; Release a slot, after all stores to it.
define internal void @release(ptr %taken, i64 %slot) {
  %offset = mul i64 %slot, 8
  %at = getelementptr i64, ptr %taken, i64 %offset
  store atomic i64 0, ptr %at release, align 8
  ret void
}
