; C = A @ B for matrices or stacks of them, by BLAS on one thread: the pool splits them.
; gf_product_TYPE(arguments, lo, hi); an index is one block of rows or columns of one product.
;
;   0  cblas_TYPEgemm  1  transpose A  2  transpose B (CBLAS numbers)  3  rows  4  columns  5  depth
;   6  A  7  its leading dimension  8  B  9  its leading dimension  10  C  11  its leading dimension
;   12  blocks of each product  13  rows or columns of a block  14  whether columns are split
;   15  size of the inner batch dimension
;   16  bytes between A's matrices along the outer and 17 the inner batch dimension;
;   18, 19 the same for B; 20, 21 for C
;   22  bytes between rows of A  23  between columns of B
;   24  between the split rows or columns of C

define void @gf_product_TYPE(ptr %arguments, i64 %low, i64 %high) {
entry:
  %gemm = load ptr, ptr %arguments
  %p1 = getelementptr i64, ptr %arguments, i64 1
  %transpose.a.wide = load i64, ptr %p1
  %transpose.a = trunc i64 %transpose.a.wide to i32
  %p2 = getelementptr i64, ptr %arguments, i64 2
  %transpose.b.wide = load i64, ptr %p2
  %transpose.b = trunc i64 %transpose.b.wide to i32
  %p3 = getelementptr i64, ptr %arguments, i64 3
  %rows = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %arguments, i64 4
  %columns = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %arguments, i64 5
  %depth = load i64, ptr %p5
  %p6 = getelementptr i64, ptr %arguments, i64 6
  %a = load ptr, ptr %p6
  %p7 = getelementptr i64, ptr %arguments, i64 7
  %leading.a = load i64, ptr %p7
  %p8 = getelementptr i64, ptr %arguments, i64 8
  %b = load ptr, ptr %p8
  %p9 = getelementptr i64, ptr %arguments, i64 9
  %leading.b = load i64, ptr %p9
  %p10 = getelementptr i64, ptr %arguments, i64 10
  %c = load ptr, ptr %p10
  %p11 = getelementptr i64, ptr %arguments, i64 11
  %leading.c = load i64, ptr %p11
  %p12 = getelementptr i64, ptr %arguments, i64 12
  %blocks = load i64, ptr %p12
  %p13 = getelementptr i64, ptr %arguments, i64 13
  %block = load i64, ptr %p13
  %p14 = getelementptr i64, ptr %arguments, i64 14
  %split = load i64, ptr %p14
  %p15 = getelementptr i64, ptr %arguments, i64 15
  %inner = load i64, ptr %p15
  %p16 = getelementptr i64, ptr %arguments, i64 16
  %outer.a = load i64, ptr %p16
  %p17 = getelementptr i64, ptr %arguments, i64 17
  %inner.a = load i64, ptr %p17
  %p18 = getelementptr i64, ptr %arguments, i64 18
  %outer.b = load i64, ptr %p18
  %p19 = getelementptr i64, ptr %arguments, i64 19
  %inner.b = load i64, ptr %p19
  %p20 = getelementptr i64, ptr %arguments, i64 20
  %outer.c = load i64, ptr %p20
  %p21 = getelementptr i64, ptr %arguments, i64 21
  %inner.c = load i64, ptr %p21
  %p22 = getelementptr i64, ptr %arguments, i64 22
  %step.a = load i64, ptr %p22
  %p23 = getelementptr i64, ptr %arguments, i64 23
  %step.b = load i64, ptr %p23
  %p24 = getelementptr i64, ptr %arguments, i64 24
  %step.c = load i64, ptr %p24
  %by.columns = icmp ne i64 %split, 0
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
  %total = select i1 %by.columns, i64 %columns, i64 %rows
  %rest = sub i64 %total, %first
  %count = call i64 @llvm.smin.i64(i64 %block, i64 %rest)
  %m = select i1 %by.columns, i64 %rows, i64 %count
  %n = select i1 %by.columns, i64 %count, i64 %columns
  %row.first = select i1 %by.columns, i64 0, i64 %first
  %column.first = select i1 %by.columns, i64 %first, i64 0
  %a.q = mul i64 %q, %outer.a
  %a.r = mul i64 %r, %inner.a
  %a.s = mul i64 %row.first, %step.a
  %a.qr = add i64 %a.q, %a.r
  %a.offset = add i64 %a.qr, %a.s
  %a.at = getelementptr i8, ptr %a, i64 %a.offset
  %b.q = mul i64 %q, %outer.b
  %b.r = mul i64 %r, %inner.b
  %b.s = mul i64 %column.first, %step.b
  %b.qr = add i64 %b.q, %b.r
  %b.offset = add i64 %b.qr, %b.s
  %b.at = getelementptr i8, ptr %b, i64 %b.offset
  %c.q = mul i64 %q, %outer.c
  %c.r = mul i64 %r, %inner.c
  %c.s = mul i64 %first, %step.c
  %c.qr = add i64 %c.q, %c.r
  %c.offset = add i64 %c.qr, %c.s
  %c.at = getelementptr i8, ptr %c, i64 %c.offset
  call void %gemm(i32 101, i32 %transpose.a, i32 %transpose.b, i64 %m, i64 %n, i64 %depth, SCALAR ONE, ptr %a.at, i64 %leading.a, ptr %b.at, i64 %leading.b, SCALAR ZERO, ptr %c.at, i64 %leading.c)
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}
