; A function that native programs run like a compiled kernel: function(arguments, lo, hi).

; Arguments: target, source. Indices are bytes.
define void @gf_copy(ptr %arguments, i64 %low, i64 %high) {
  %target = load ptr, ptr %arguments
  %source.at = getelementptr i64, ptr %arguments, i64 1
  %source = load ptr, ptr %source.at
  %to = getelementptr i8, ptr %target, i64 %low
  %from = getelementptr i8, ptr %source, i64 %low
  %count = sub i64 %high, %low
  call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %from, i64 %count, i1 false)
  ret void
}
