; y = op(A) x for matrices or stacks of them, by BLAS on one thread: the pool splits them.
; gf_vector_product_TYPE(arguments, lo, hi); an index is one block of elements of one y.
;
;   0  cblas_TYPEgemv  1  transpose A (CBLAS's number)  2  elements of y  3  of x
;   4  A  5  its leading dimension  6  x  7  its stride  8  y, row-major
;   9  blocks of each y  10  elements of a block  11  size of the inner batch dimension
;  12  bytes between A's matrices along the outer and 13 the inner batch dimension;
;  14, 15 the same for x; 16, 17 for y
;  18  bytes between rows of op(A)  19  between elements of y

define void @gf_vector_product_TYPE(ptr %arguments, i64 %low, i64 %high) {
entry:
  %gemv = call ptr @pointer(ptr %arguments, i64 0)
  %transposed.wide = call i64 @integer(ptr %arguments, i64 1)
  %transposed = trunc i64 %transposed.wide to i32
  %is.plain = icmp eq i64 %transposed.wide, 111
  %size = call i64 @integer(ptr %arguments, i64 2)
  %depth = call i64 @integer(ptr %arguments, i64 3)
  %a = call ptr @pointer(ptr %arguments, i64 4)
  %leading = call i64 @integer(ptr %arguments, i64 5)
  %x = call ptr @pointer(ptr %arguments, i64 6)
  %stride = call i64 @integer(ptr %arguments, i64 7)
  %y = call ptr @pointer(ptr %arguments, i64 8)
  %blocks = call i64 @integer(ptr %arguments, i64 9)
  %block = call i64 @integer(ptr %arguments, i64 10)
  %inner = call i64 @integer(ptr %arguments, i64 11)
  %a.outer = call i64 @integer(ptr %arguments, i64 12)
  %a.inner = call i64 @integer(ptr %arguments, i64 13)
  %x.outer = call i64 @integer(ptr %arguments, i64 14)
  %x.inner = call i64 @integer(ptr %arguments, i64 15)
  %y.outer = call i64 @integer(ptr %arguments, i64 16)
  %y.inner = call i64 @integer(ptr %arguments, i64 17)
  %a.step = call i64 @integer(ptr %arguments, i64 18)
  %y.step = call i64 @integer(ptr %arguments, i64 19)
  br label %look
look:
  %k = phi i64 [ %low, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %end
one:
  %product = sdiv i64 %k, %blocks
  %number = srem i64 %k, %blocks
  %q = sdiv i64 %product, %inner
  %r = srem i64 %product, %inner
  %first = mul i64 %number, %block
  %rest = sub i64 %size, %first
  %count = call i64 @llvm.smin.i64(i64 %block, i64 %rest)
  %a.q = mul i64 %q, %a.outer
  %a.r = mul i64 %r, %a.inner
  %a.s = mul i64 %first, %a.step
  %a.qr = add i64 %a.q, %a.r
  %a.offset = add i64 %a.qr, %a.s
  %a.at = getelementptr i8, ptr %a, i64 %a.offset
  %x.q = mul i64 %q, %x.outer
  %x.r = mul i64 %r, %x.inner
  %x.offset = add i64 %x.q, %x.r
  %x.at = getelementptr i8, ptr %x, i64 %x.offset
  %y.q = mul i64 %q, %y.outer
  %y.r = mul i64 %r, %y.inner
  %y.s = mul i64 %first, %y.step
  %y.qr = add i64 %y.q, %y.r
  %y.offset = add i64 %y.qr, %y.s
  %y.at = getelementptr i8, ptr %y, i64 %y.offset
  ; Rows and columns of A as stored.
  %m = select i1 %is.plain, i64 %count, i64 %depth
  %n = select i1 %is.plain, i64 %depth, i64 %count
  call void %gemv(i32 101, i32 %transposed, i64 %m, i64 %n, SCALAR ONE, ptr %a.at, i64 %leading, ptr %x.at, i64 %stride, SCALAR ZERO, ptr %y.at, i64 1)
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}
