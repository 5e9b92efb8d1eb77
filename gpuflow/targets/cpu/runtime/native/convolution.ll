; Convolutions as products of packed matrices (im2col), by BLAS on one thread: the pool splits them.
;
; A convolution has elements lhs[u, position] and rhs[o, depth]. A position is
; i * i.step + j * j.step - pad in each of three dimensions of space. If it is a multiple of the
; dilation and in bounds, it is element position / dilation; else it is a zero. A packed matrix P
; has lhs at (u, i) and j, one block at a time, in a slot of memory that fits a core's cache:
;
;     lhs, space along the last dimension           P, for a step of 1 of i and j, pad 1
;
;         0 1 2 3 4 5                                        j = 0  1  2  3
;     u0  a b c d e f                               u0 i=0       0  a  b  c
;     u1  A B C D E F                               u0 i=1       a  b  c  d
;                                                   u1 i=0       0  A  B  C
;                                                   u1 i=1       A  B  C  D
;
;     form 0, few taps:   out[o, j]      = sum over (u, i) of rhs[o, (u, i)] * P[(u, i), j]
;     form 1, many taps:  out[o, (u, i)] = sum over j of      rhs[o, j]      * P[(u, i), j]
;
; An index of @gf_convolution_TYPE is ((outer axes) * blocks + block) * splits + split:
;
;     outer axes   groups and batches: offsets in lhs, rhs and out, from a table
;     block        of the result: a range of j (form 0) or of u (form 1)
;     split        of the sum: a range of its iterations. Each split has a separate partial sum, and
;                  @gf_sum_partials_TYPE adds them up
;     iteration    a step of the sum over axes without blocks (offsets from a table), and a block of
;                  the summed axis: one packed matrix and one product, added to those before
;
; The argument block; strides and offsets are in bytes:
;
;     slot
;        +----------------------------------------------------------------------------------+
;      0 | cblas_TYPEgemm                                                                   |
;        +----------------------------------------------------------------------------------+
;      1 | flags of claimed slots, one in 64 bytes | 2 their memory | 3 their number        |
;      4 | bytes of one slot                                                                |
;        +----------------------------------------------------------------------------------+
;      5 | lhs | 6 rhs | 7 out                                                              |
;        +----------------------------------------------------------------------------------+
;      8 | splits of the sum                                                                |
;      9 | blocks of the result, of j (form 0) or of u (form 1) | 10 form                   |
;     11 | number of outer axes | 12 their table: size, strides of lhs, rhs, out            |
;     13 | steps of the sum over other axes  | 14 number of their axes | 15 their table     |
;     16 | between results of splits                                                        |
;        +----------------------------------------------------------------------------------+
;     17 | size of u | 18 its block | 19, 20, 21 its strides in lhs, rhs, out               |
;     22 | blocks of j | 23, 24 strides of j in rhs, out                                    |
;        +----------------------------------------------------------------------------------+
;     25 | layout of P: 0 lhs itself, 1 as [(u, i), j], 2 as [j, (i, u)]                    |
;     26 | P's leading dimension | 27 the stride of j, if it is lhs itself                   |
;     28 | whether o are the rows of the result                                             |
;     29 | transpose rhs | 30 transpose P (CBLAS numbers)                                   |
;     31 | size of o | 32 leading dimension of rhs | 33 of out                              |
;     34 | product of the sizes of i | 35 whether u is contiguous along the last i          |
;        +----------------------------------------------------------------------------------+
;     36 | dimension 0 of space | 48 dimension 1 | 60 dimension 2, the innermost            |
;        +----------------------------------------------------------------------------------+
;
; Each dimension of space has twelve slots:
;
;        + 0 size of i | + 1 i.step | + 2 j.step | + 3 pad
;        + 4 size of lhs | + 5 dilation | + 6 stride of lhs
;        + 7 size of j | + 8 its block | + 9 number of blocks
;        + 10 step of j's that are elements, with lhs dilation | + 11 step of these elements
;
; All loops have one form: ``x.look`` checks whether there is another x, ``x.one`` is the body, and
; ``x.end`` continues with the next.

; Arguments are constant while a function runs, so these are invariant loads.
define internal i64 @integer.TYPE(ptr %arguments, i64 %k) alwaysinline {
  %at = getelementptr i64, ptr %arguments, i64 %k
  %value = load i64, ptr %at, !invariant.load !0
  ret i64 %value
}

; The offsets in three arrays of a linear index over the axes of a table.
define internal { i64, i64, i64 } @offsets.TYPE(ptr %table, i64 %axes, i64 %index) alwaysinline {
entry:
  ; Delinearize the index, from the innermost axis outwards.
  br label %look
look:
  ; Is there another axis? The offsets are sums over the axes so far.
  %d = phi i64 [ %axes, %entry ], [ %d.next, %axis ]
  %rest = phi i64 [ %index, %entry ], [ %rest.next, %axis ]
  %lhs = phi i64 [ 0, %entry ], [ %lhs.next, %axis ]
  %rhs = phi i64 [ 0, %entry ], [ %rhs.next, %axis ]
  %out = phi i64 [ 0, %entry ], [ %out.next, %axis ]
  %left = icmp sgt i64 %d, 0
  br i1 %left, label %axis, label %end
axis:
  ; Its row of the table. The remaining index modulo its size is the index along it.
  %d.next = add i64 %d, -1
  %first = mul i64 %d.next, 4
  %row = getelementptr i64, ptr %table, i64 %first
  %size = call i64 @integer.TYPE(ptr %row, i64 0)
  %lhs.stride = call i64 @integer.TYPE(ptr %row, i64 1)
  %rhs.stride = call i64 @integer.TYPE(ptr %row, i64 2)
  %out.stride = call i64 @integer.TYPE(ptr %row, i64 3)
  %position = srem i64 %rest, %size
  %rest.next = sdiv i64 %rest, %size
  %lhs.part = mul i64 %position, %lhs.stride
  %rhs.part = mul i64 %position, %rhs.stride
  %out.part = mul i64 %position, %out.stride
  %lhs.next = add i64 %lhs, %lhs.part
  %rhs.next = add i64 %rhs, %rhs.part
  %out.next = add i64 %out, %out.part
  br label %look
end:
  ; The three sums.
  %r0 = insertvalue { i64, i64, i64 } poison, i64 %lhs, 0
  %r1 = insertvalue { i64, i64, i64 } %r0, i64 %rhs, 1
  %r2 = insertvalue { i64, i64, i64 } %r1, i64 %out, 2
  ret { i64, i64, i64 } %r2
}

; The offset in lhs of a position along one dimension; -1 if it is padding, or between elements.
define internal i64 @in_bounds.TYPE(ptr %d, i64 %i, i64 %j) alwaysinline {
entry:
  ; The position, which is the element without lhs dilation.
  %i.step = call i64 @integer.TYPE(ptr %d, i64 1)
  %j.step = call i64 @integer.TYPE(ptr %d, i64 2)
  %pad = call i64 @integer.TYPE(ptr %d, i64 3)
  %size = call i64 @integer.TYPE(ptr %d, i64 4)
  %dilation = call i64 @integer.TYPE(ptr %d, i64 5)
  %stride = call i64 @integer.TYPE(ptr %d, i64 6)
  %i.part = mul i64 %i, %i.step
  %j.part = mul i64 %j, %j.step
  %sum = add i64 %i.part, %j.part
  %position = sub i64 %sum, %pad
  %dense = icmp eq i64 %dilation, 1
  br i1 %dense, label %check, label %dilated
dilated:
  ; Only multiples of the dilation are elements; -1 is outside any size.
  %quotient = sdiv i64 %position, %dilation
  %rest = srem i64 %position, %dilation
  %on = icmp eq i64 %rest, 0
  %between = select i1 %on, i64 %quotient, i64 -1
  br label %check
check:
  ; One unsigned comparison checks both bounds, because negative numbers are large without a sign.
  %element = phi i64 [ %position, %entry ], [ %between, %dilated ]
  %in = icmp ult i64 %element, %size
  %offset = mul i64 %element, %stride
  %offset.or.none = select i1 %in, i64 %offset, i64 -1
  ret i64 %offset.or.none
}

; The j of a block's last dimension that are in bounds, for one i: the first of them, their number,
; and the offset of the first in lhs.
define internal { i64, i64, i64 } @run.TYPE(ptr %d, i64 %i, i64 %start, i64 %size) {
entry:
  ; The position of the block's first j, and how much room is behind it.
  %i.step = call i64 @integer.TYPE(ptr %d, i64 1)
  %j.step = call i64 @integer.TYPE(ptr %d, i64 2)
  %pad = call i64 @integer.TYPE(ptr %d, i64 3)
  %n = call i64 @integer.TYPE(ptr %d, i64 4)
  %dilation = call i64 @integer.TYPE(ptr %d, i64 5)
  %stride = call i64 @integer.TYPE(ptr %d, i64 6)
  %period = call i64 @integer.TYPE(ptr %d, i64 10)
  %i.part = mul i64 %i, %i.step
  %j.part = mul i64 %start, %j.step
  %sum = add i64 %i.part, %j.part
  %base = sub i64 %sum, %pad
  %last.element = add i64 %n, -1
  %last.position = mul i64 %last.element, %dilation
  %room = sub i64 %last.position, %base
  %some = icmp sge i64 %room, 0
  br i1 %some, label %scan, label %none
scan:
  ; Within a period of j one at most is an element: try each. There may be none.
  %t = phi i64 [ 0, %entry ], [ %t.next, %scan.next ]
  %more = icmp slt i64 %t, %period
  br i1 %more, label %try, label %none
try:
  ; Is the position of j number t a multiple of the dilation?
  %t.part = mul i64 %t, %j.step
  %t.position = add i64 %base, %t.part
  %rest = srem i64 %t.position, %dilation
  %on = icmp eq i64 %rest, 0
  br i1 %on, label %hit, label %scan.next
scan.next:
  ; Between elements.
  %t.next = add i64 %t, 1
  br label %scan
hit:
  ; One is t; those inside are t, t + period, ...
  ; The first at or after 0: -position / (period * j.step), rounded up.
  %below = sub i64 0, %t.position
  %jump = mul i64 %period, %j.step
  %jump.less = add i64 %jump, -1
  %below.more = add i64 %below, %jump.less
  %is.below = icmp sgt i64 %below, 0
  %jumps = sdiv i64 %below.more, %jump
  %skipped = select i1 %is.below, i64 %jumps, i64 0
  %skip = mul i64 %skipped, %period
  %first = add i64 %t, %skip
  %last.inside = sdiv i64 %room, %j.step
  %size.less = add i64 %size, -1
  %last = call i64 @llvm.smin.i64(i64 %last.inside, i64 %size.less)
  %span = sub i64 %last, %first
  %empty = icmp slt i64 %span, 0
  %spans = sdiv i64 %span, %period
  %count.more = add i64 %spans, 1
  %count = select i1 %empty, i64 0, i64 %count.more
  %first.part = mul i64 %first, %j.step
  %first.position = add i64 %base, %first.part
  %element = sdiv i64 %first.position, %dilation
  %offset = mul i64 %element, %stride
  %r0 = insertvalue { i64, i64, i64 } poison, i64 %first, 0
  %r1 = insertvalue { i64, i64, i64 } %r0, i64 %count, 1
  %r2 = insertvalue { i64, i64, i64 } %r1, i64 %offset, 2
  ret { i64, i64, i64 } %r2
none:
  ; No j is inside: no run.
  ret { i64, i64, i64 } zeroinitializer
}

; target[k] = source[k] for first <= k < first + count, else 0, for k < size.
define internal void @dense.TYPE(
    ptr noalias %target, ptr noalias %source, i64 %first, i64 %count, i64 %size) alwaysinline {
entry:
  ; The three bounds in all lanes; they are below 2**31.
  %first.narrow = trunc i64 %first to i32
  %count.narrow = trunc i64 %count to i32
  %size.narrow = trunc i64 %size to i32
  %f0 = insertelement <LANES x i32> poison, i32 %first.narrow, i32 0
  %firsts = shufflevector <LANES x i32> %f0, <LANES x i32> poison, <LANES x i32> zeroinitializer
  %c0 = insertelement <LANES x i32> poison, i32 %count.narrow, i32 0
  %counts = shufflevector <LANES x i32> %c0, <LANES x i32> poison, <LANES x i32> zeroinitializer
  %s0 = insertelement <LANES x i32> poison, i32 %size.narrow, i32 0
  %sizes = shufflevector <LANES x i32> %s0, <LANES x i32> poison, <LANES x i32> zeroinitializer
  br label %look
look:
  ; Another vector of LANES elements?
  %k = phi i64 [ 0, %entry ], [ %next, %some ]
  %more = icmp slt i64 %k, %size
  br i1 %more, label %some, label %end
some:
  ; Masks of the elements of the run, which are read, and of the row, which are written.
  %k.narrow = trunc i64 %k to i32
  %k0 = insertelement <LANES x i32> poison, i32 %k.narrow, i32 0
  %ks = shufflevector <LANES x i32> %k0, <LANES x i32> poison, <LANES x i32> zeroinitializer
  %indices = add <LANES x i32> %ks, IOTA
  %within = icmp ult <LANES x i32> %indices, %sizes
  %after = sub <LANES x i32> %indices, %firsts
  %full = icmp ult <LANES x i32> %after, %counts
  %from = getelementptr ELEMENT, ptr %source, i64 %k
  %to = getelementptr ELEMENT, ptr %target, i64 %k
  %values = call <LANES x ELEMENT> @llvm.masked.load.SUFFIX.p0(ptr %from, i32 BYTES, <LANES x i1> %full, <LANES x ELEMENT> zeroinitializer)
  call void @llvm.masked.store.SUFFIX.p0(<LANES x ELEMENT> %values, ptr %to, i32 BYTES, <LANES x i1> %within)
  %next = add i64 %k, LANES
  br label %look
end:
  ; Neither source nor target was touched outside.
  ret void
}

; The same for every step-th k, from source elements with a stride in bytes.
define internal void @spread.TYPE(
    ptr %target, ptr %source, i64 %first, i64 %count, i64 %size, i64 %step, i64 %stride) {
entry:
  ; Zeros are needed if the run leaves indices out.
  %all = icmp eq i64 %count, %size
  br i1 %all, label %look, label %clear
clear:
  ; The whole row.
  %bytes = mul i64 %size, BYTES
  call void @llvm.memset.p0.i64(ptr %target, i8 0, i64 %bytes, i1 false)
  br label %look
look:
  ; Another element of the run?
  %k = phi i64 [ 0, %entry ], [ 0, %clear ], [ %next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %end
one:
  ; From its position in lhs to its index in the row.
  %from.offset = mul i64 %k, %stride
  %from = getelementptr i8, ptr %source, i64 %from.offset
  %value = load ELEMENT, ptr %from
  %moved = mul i64 %k, %step
  %position = add i64 %first, %moved
  %to = getelementptr ELEMENT, ptr %target, i64 %position
  store ELEMENT %value, ptr %to
  %next = add i64 %k, 1
  br label %look
end:
  ; All elements of the row are written.
  ret void
}

; P as [(u, i), j]. The block of j starts at (s0, s1, s2) and has sizes (n0, n1, n2).
define internal void @pack.rows.TYPE(
    ptr %arguments, ptr %lhs, i64 %us, i64 %s0, i64 %s1, i64 %s2, i64 %n0, i64 %n1, i64 %n2,
    ptr %target) {
entry:
  ; Sizes of i, and how runs of the last dimension lie: densely in both, or spread.
  %d0 = getelementptr i64, ptr %arguments, i64 36
  %d1 = getelementptr i64, ptr %arguments, i64 48
  %d2 = getelementptr i64, ptr %arguments, i64 60
  %u.stride = call i64 @integer.TYPE(ptr %arguments, i64 19)
  %i0s = call i64 @integer.TYPE(ptr %d0, i64 0)
  %i1s = call i64 @integer.TYPE(ptr %d1, i64 0)
  %i2s = call i64 @integer.TYPE(ptr %d2, i64 0)
  %stride2 = call i64 @integer.TYPE(ptr %d2, i64 6)
  %step2 = call i64 @integer.TYPE(ptr %d2, i64 10)
  %element.step = call i64 @integer.TYPE(ptr %d2, i64 11)
  %source.step = mul i64 %element.step, %stride2
  %unit.source = icmp eq i64 %source.step, BYTES
  %unit.step = icmp eq i64 %step2, 1
  %unit = and i1 %unit.source, %unit.step
  %n01 = mul i64 %n0, %n1
  %columns = mul i64 %n01, %n2
  br label %i2.look
i2.look:
  ; Taps of the last dimension are outermost: which j of a row are inside depends on them alone.
  %i2 = phi i64 [ 0, %entry ], [ %i2.next, %i2.end ]
  %i2.more = icmp slt i64 %i2, %i2s
  br i1 %i2.more, label %i2.one, label %end
i2.one:
  ; The run of j inside, for all rows with this i2.
  %run = call { i64, i64, i64 } @run.TYPE(ptr %d2, i64 %i2, i64 %s2, i64 %n2)
  %first = extractvalue { i64, i64, i64 } %run, 0
  %count = extractvalue { i64, i64, i64 } %run, 1
  %offset2 = extractvalue { i64, i64, i64 } %run, 2
  ; Where element 0 of the run would lie.
  %lead = mul i64 %first, BYTES
  %offset2.zero = sub i64 %offset2, %lead
  br label %u.look
u.look:
  ; Another u?
  %u = phi i64 [ 0, %i2.one ], [ %u.next, %u.end ]
  %u.more = icmp slt i64 %u, %us
  br i1 %u.more, label %u.one, label %i2.end
u.one:
  ; Where it begins in lhs.
  %u.offset = mul i64 %u, %u.stride
  br label %i0.look
i0.look:
  ; Another i0?
  %i0 = phi i64 [ 0, %u.one ], [ %i0.next, %i0.end ]
  %i0.more = icmp slt i64 %i0, %i0s
  br i1 %i0.more, label %i0.one, label %u.end
i0.one:
  ; Its i1.
  br label %i1.look
i1.look:
  ; Another i1?
  %i1 = phi i64 [ 0, %i0.one ], [ %i1.next, %i1.end ]
  %i1.more = icmp slt i64 %i1, %i1s
  br i1 %i1.more, label %i1.one, label %i0.end
i1.one:
  ; Row (u, i0, i1, i2) of P, which has n0 * n1 * n2 elements.
  %r0 = mul i64 %u, %i0s
  %r0.sum = add i64 %r0, %i0
  %r1 = mul i64 %r0.sum, %i1s
  %r1.sum = add i64 %r1, %i1
  %r2 = mul i64 %r1.sum, %i2s
  %row = add i64 %r2, %i2
  %row.first = mul i64 %row, %columns
  %row.at = getelementptr ELEMENT, ptr %target, i64 %row.first
  br label %j0.look
j0.look:
  ; Another j0? at0 is where its elements of the row begin.
  %j0 = phi i64 [ 0, %i1.one ], [ %j0.next, %j0.end ]
  %at0 = phi ptr [ %row.at, %i1.one ], [ %at1, %j0.end ]
  %j0.more = icmp slt i64 %j0, %n0
  br i1 %j0.more, label %j0.one, label %i1.end
j0.one:
  ; Its offset in lhs, or that it is outside.
  %j0.position = add i64 %s0, %j0
  %offset0 = call i64 @in_bounds.TYPE(ptr %d0, i64 %i0, i64 %j0.position)
  %in0 = icmp ne i64 %offset0, -1
  %u0.offset = add i64 %u.offset, %offset0
  br label %j1.look
j1.look:
  ; Another j1? at1 is where its n2 elements begin.
  %j1 = phi i64 [ 0, %j0.one ], [ %j1.next, %j1.end ]
  %at1 = phi ptr [ %at0, %j0.one ], [ %at1.next, %j1.end ]
  %j1.more = icmp slt i64 %j1, %n1
  br i1 %j1.more, label %j1.one, label %j0.end
j1.one:
  ; Out of bounds in dimension 0 or 1: all elements become zeros.
  %j1.position = add i64 %s1, %j1
  %offset1 = call i64 @in_bounds.TYPE(ptr %d1, i64 %i1, i64 %j1.position)
  %in1 = icmp ne i64 %offset1, -1
  %in = and i1 %in0, %in1
  %inside.count = select i1 %in, i64 %count, i64 0
  %u01.offset = add i64 %u0.offset, %offset1
  br i1 %unit, label %is.dense, label %is.spread
is.dense:
  ; The run from adjacent elements to adjacent elements, in vectors.
  %dense.offset = add i64 %u01.offset, %offset2.zero
  %dense.from = getelementptr i8, ptr %lhs, i64 %dense.offset
  call void @dense.TYPE(ptr %at1, ptr %dense.from, i64 %first, i64 %inside.count, i64 %n2)
  br label %j1.end
is.spread:
  ; One element at a time.
  %spread.offset = add i64 %u01.offset, %offset2
  %spread.from = getelementptr i8, ptr %lhs, i64 %spread.offset
  call void @spread.TYPE(ptr %at1, ptr %spread.from, i64 %first, i64 %inside.count, i64 %n2, i64 %step2, i64 %source.step)
  br label %j1.end
j1.end:
  ; The next n2 elements.
  %j1.next = add i64 %j1, 1
  %at1.next = getelementptr ELEMENT, ptr %at1, i64 %n2
  br label %j1.look
j0.end:
  ; The next j0.
  %j0.next = add i64 %j0, 1
  br label %j0.look
i1.end:
  ; The next row.
  %i1.next = add i64 %i1, 1
  br label %i1.look
i0.end:
  ; The next i0.
  %i0.next = add i64 %i0, 1
  br label %i0.look
u.end:
  ; The next u.
  %u.next = add i64 %u, 1
  br label %u.look
i2.end:
  ; The next i2.
  %i2.next = add i64 %i2, 1
  br label %i2.look
end:
  ; P is complete.
  ret void
}

; Bytes from source if it is in bounds, else zeros.
define internal void @fill.TYPE(ptr noalias %target, ptr noalias %source, i1 %in, i64 %bytes) alwaysinline {
entry:
  ; Inside?
  br i1 %in, label %copy, label %clear
copy:
  ; All u of one element lie side by side.
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  ret void
clear:
  ; Out of bounds, or between elements.
  call void @llvm.memset.p0.i64(ptr %target, i8 0, i64 %bytes, i1 false)
  ret void
}

; P as [j, (i, u)], where u has stride 1.
define internal void @pack.columns.TYPE(
    ptr %arguments, ptr %lhs, i64 %us, i64 %s0, i64 %s1, i64 %s2, i64 %n0, i64 %n1, i64 %n2,
    ptr %target) {
entry:
  ; Bytes of all u of an element, and of a row of them along the last i.
  %d0 = getelementptr i64, ptr %arguments, i64 36
  %d1 = getelementptr i64, ptr %arguments, i64 48
  %d2 = getelementptr i64, ptr %arguments, i64 60
  %i0s = call i64 @integer.TYPE(ptr %d0, i64 0)
  %i1s = call i64 @integer.TYPE(ptr %d1, i64 0)
  %i2s = call i64 @integer.TYPE(ptr %d2, i64 0)
  %joined.wide = call i64 @integer.TYPE(ptr %arguments, i64 35)
  %joined = icmp ne i64 %joined.wide, 0
  %j2.step = call i64 @integer.TYPE(ptr %d2, i64 2)
  %pad2 = call i64 @integer.TYPE(ptr %d2, i64 3)
  %size2 = call i64 @integer.TYPE(ptr %d2, i64 4)
  %bytes = mul i64 %us, BYTES
  %row.bytes = mul i64 %bytes, %i2s
  br label %j0.look
j0.look:
  ; Another j0? at0 is where its rows of P begin.
  %j0 = phi i64 [ 0, %entry ], [ %j0.next, %j0.end ]
  %at0 = phi ptr [ %target, %entry ], [ %at1, %j0.end ]
  %j0.more = icmp slt i64 %j0, %n0
  br i1 %j0.more, label %j0.one, label %end
j0.one:
  ; Its position in all of j.
  %j0.position = add i64 %s0, %j0
  br label %j1.look
j1.look:
  ; Another j1?
  %j1 = phi i64 [ 0, %j0.one ], [ %j1.next, %j1.end ]
  %at1 = phi ptr [ %at0, %j0.one ], [ %at2, %j1.end ]
  %j1.more = icmp slt i64 %j1, %n1
  br i1 %j1.more, label %j1.one, label %j0.end
j1.one:
  ; Its position in all of j.
  %j1.position = add i64 %s1, %j1
  br label %j2.look
j2.look:
  ; Another j2? Each has a row of P, which is written from start to end.
  %j2 = phi i64 [ 0, %j1.one ], [ %j2.next, %j2.end ]
  %at2 = phi ptr [ %at1, %j1.one ], [ %at3, %j2.end ]
  %j2.more = icmp slt i64 %j2, %n2
  br i1 %j2.more, label %j2.one, label %j1.end
j2.one:
  ; Where the row's last dimension begins in lhs: element base2.
  %j2.position = add i64 %s2, %j2
  %j2.part = mul i64 %j2.position, %j2.step
  %base2 = sub i64 %j2.part, %pad2
  ; For joined rows: i2 from low to high are inside.
  %below = sub i64 0, %base2
  %low.some = call i64 @llvm.smax.i64(i64 %below, i64 0)
  %low = call i64 @llvm.smin.i64(i64 %low.some, i64 %i2s)
  %above = sub i64 %size2, %base2
  %high.some = call i64 @llvm.smin.i64(i64 %above, i64 %i2s)
  %high = call i64 @llvm.smax.i64(i64 %high.some, i64 %low)
  %head.bytes = mul i64 %low, %bytes
  %inner = sub i64 %high, %low
  %inner.bytes = mul i64 %inner, %bytes
  %outer = sub i64 %i2s, %high
  %tail.bytes = mul i64 %outer, %bytes
  %inner.position = add i64 %base2, %low
  %inner.offset = mul i64 %inner.position, %bytes
  br label %i0.look
i0.look:
  ; Another i0?
  %i0 = phi i64 [ 0, %j2.one ], [ %i0.next, %i0.end ]
  %at3 = phi ptr [ %at2, %j2.one ], [ %at4, %i0.end ]
  %i0.more = icmp slt i64 %i0, %i0s
  br i1 %i0.more, label %i0.one, label %j2.end
i0.one:
  ; Its offset in lhs, or that it is outside.
  %offset0 = call i64 @in_bounds.TYPE(ptr %d0, i64 %i0, i64 %j0.position)
  %in0 = icmp ne i64 %offset0, -1
  br label %i1.look
i1.look:
  ; Another i1? at4 is where its elements of the last dimension belong.
  %i1 = phi i64 [ 0, %i0.one ], [ %i1.next, %i1.end ]
  %at4 = phi ptr [ %at3, %i0.one ], [ %at4.next, %i1.end ]
  %i1.more = icmp slt i64 %i1, %i1s
  br i1 %i1.more, label %i1.one, label %i0.end
i1.one:
  ; Its offset, and where the next one begins.
  %at4.next = getelementptr i8, ptr %at4, i64 %row.bytes
  %offset1 = call i64 @in_bounds.TYPE(ptr %d1, i64 %i1, i64 %j1.position)
  %in1 = icmp ne i64 %offset1, -1
  %in = and i1 %in0, %in1
  %offset01 = add i64 %offset0, %offset1
  br i1 %in, label %i2.start, label %zero
zero:
  ; Outside in dimension 0 or 1: nothing of the last dimension is there.
  call void @llvm.memset.p0.i64(ptr %at4, i8 0, i64 %row.bytes, i1 false)
  br label %i1.end
i2.start:
  ; Where steps and dilation are 1, neighboring i2 are neighbors in lhs: one copy for all.
  br i1 %joined, label %join, label %i2.look
join:
  ; Zeros before, what is inside, zeros behind.
  call void @llvm.memset.p0.i64(ptr %at4, i8 0, i64 %head.bytes, i1 false)
  %join.to = getelementptr i8, ptr %at4, i64 %head.bytes
  %join.offset = add i64 %offset01, %inner.offset
  %join.from = getelementptr i8, ptr %lhs, i64 %join.offset
  call void @llvm.memcpy.p0.p0.i64(ptr %join.to, ptr %join.from, i64 %inner.bytes, i1 false)
  %tail.to = getelementptr i8, ptr %join.to, i64 %inner.bytes
  call void @llvm.memset.p0.i64(ptr %tail.to, i8 0, i64 %tail.bytes, i1 false)
  br label %i1.end
i2.look:
  ; Another i2?
  %i2 = phi i64 [ 0, %i2.start ], [ %i2.next, %i2.one ]
  %at5 = phi ptr [ %at4, %i2.start ], [ %at5.next, %i2.one ]
  %i2.more = icmp slt i64 %i2, %i2s
  br i1 %i2.more, label %i2.one, label %i1.end
i2.one:
  ; All u of one element, or zeros.
  %offset2 = call i64 @in_bounds.TYPE(ptr %d2, i64 %i2, i64 %j2.position)
  %in2 = icmp ne i64 %offset2, -1
  %offset = add i64 %offset01, %offset2
  %from = getelementptr i8, ptr %lhs, i64 %offset
  call void @fill.TYPE(ptr %at5, ptr %from, i1 %in2, i64 %bytes)
  %i2.next = add i64 %i2, 1
  %at5.next = getelementptr i8, ptr %at5, i64 %bytes
  br label %i2.look
i1.end:
  ; The next i1.
  %i1.next = add i64 %i1, 1
  br label %i1.look
i0.end:
  ; The next i0.
  %i0.next = add i64 %i0, 1
  br label %i0.look
j2.end:
  ; The next row.
  %j2.next = add i64 %j2, 1
  br label %j2.look
j1.end:
  ; The next j1.
  %j1.next = add i64 %j1, 1
  br label %j1.look
j0.end:
  ; The next j0.
  %j0.next = add i64 %j0, 1
  br label %j0.look
end:
  ; P is complete.
  ret void
}

define void @gf_convolution_TYPE(ptr %arguments, i64 %low, i64 %high) {
entry:
  ; All that does not depend on the index, and a slot for packed matrices.
  %gemm = load ptr, ptr %arguments
  %memory.wide = call i64 @integer.TYPE(ptr %arguments, i64 2)
  %memory = inttoptr i64 %memory.wide to ptr
  %slot.bytes = call i64 @integer.TYPE(ptr %arguments, i64 4)
  %lhs.wide = call i64 @integer.TYPE(ptr %arguments, i64 5)
  %lhs = inttoptr i64 %lhs.wide to ptr
  %rhs.wide = call i64 @integer.TYPE(ptr %arguments, i64 6)
  %rhs = inttoptr i64 %rhs.wide to ptr
  %out.wide = call i64 @integer.TYPE(ptr %arguments, i64 7)
  %out = inttoptr i64 %out.wide to ptr
  %splits = call i64 @integer.TYPE(ptr %arguments, i64 8)
  %blocks = call i64 @integer.TYPE(ptr %arguments, i64 9)
  %form = call i64 @integer.TYPE(ptr %arguments, i64 10)
  %sums.j = icmp ne i64 %form, 0
  %axes = call i64 @integer.TYPE(ptr %arguments, i64 11)
  %table.wide = call i64 @integer.TYPE(ptr %arguments, i64 12)
  %table = inttoptr i64 %table.wide to ptr
  %steps = call i64 @integer.TYPE(ptr %arguments, i64 13)
  %step.axes = call i64 @integer.TYPE(ptr %arguments, i64 14)
  %step.table.wide = call i64 @integer.TYPE(ptr %arguments, i64 15)
  %step.table = inttoptr i64 %step.table.wide to ptr
  %split.stride = call i64 @integer.TYPE(ptr %arguments, i64 16)
  %u.size = call i64 @integer.TYPE(ptr %arguments, i64 17)
  %u.block = call i64 @integer.TYPE(ptr %arguments, i64 18)
  %u.lhs = call i64 @integer.TYPE(ptr %arguments, i64 19)
  %u.rhs = call i64 @integer.TYPE(ptr %arguments, i64 20)
  %u.out = call i64 @integer.TYPE(ptr %arguments, i64 21)
  %j.blocks = call i64 @integer.TYPE(ptr %arguments, i64 22)
  %j.rhs = call i64 @integer.TYPE(ptr %arguments, i64 23)
  %j.out = call i64 @integer.TYPE(ptr %arguments, i64 24)
  %layout = call i64 @integer.TYPE(ptr %arguments, i64 25)
  %leading.lhs = call i64 @integer.TYPE(ptr %arguments, i64 26)
  %j.lhs = call i64 @integer.TYPE(ptr %arguments, i64 27)
  %rhs.first.wide = call i64 @integer.TYPE(ptr %arguments, i64 28)
  %rhs.first = icmp ne i64 %rhs.first.wide, 0
  %transpose.rhs.wide = call i64 @integer.TYPE(ptr %arguments, i64 29)
  %transpose.rhs = trunc i64 %transpose.rhs.wide to i32
  %transpose.p.wide = call i64 @integer.TYPE(ptr %arguments, i64 30)
  %transpose.p = trunc i64 %transpose.p.wide to i32
  %o.size = call i64 @integer.TYPE(ptr %arguments, i64 31)
  %leading.rhs = call i64 @integer.TYPE(ptr %arguments, i64 32)
  %leading.out = call i64 @integer.TYPE(ptr %arguments, i64 33)
  %i.size = call i64 @integer.TYPE(ptr %arguments, i64 34)
  %d0 = getelementptr i64, ptr %arguments, i64 36
  %d1 = getelementptr i64, ptr %arguments, i64 48
  %d2 = getelementptr i64, ptr %arguments, i64 60
  %j0.size = call i64 @integer.TYPE(ptr %d0, i64 7)
  %j1.size = call i64 @integer.TYPE(ptr %d1, i64 7)
  %j2.size = call i64 @integer.TYPE(ptr %d2, i64 7)
  %j0.block = call i64 @integer.TYPE(ptr %d0, i64 8)
  %j1.block = call i64 @integer.TYPE(ptr %d1, i64 8)
  %j2.block = call i64 @integer.TYPE(ptr %d2, i64 8)
  %j1.blocks = call i64 @integer.TYPE(ptr %d1, i64 9)
  %j2.blocks = call i64 @integer.TYPE(ptr %d2, i64 9)
  %u.more = add i64 %u.size, %u.block
  %u.less = add i64 %u.more, -1
  %u.blocks = sdiv i64 %u.less, %u.block
  %summed.blocks = select i1 %sums.j, i64 %j.blocks, i64 %u.blocks
  %iterations = mul i64 %steps, %summed.blocks
  %taken.wide = call i64 @integer.TYPE(ptr %arguments, i64 1)
  %taken = inttoptr i64 %taken.wide to ptr
  %slots = call i64 @integer.TYPE(ptr %arguments, i64 3)
  %slot = call i64 @claim(ptr %taken, i64 %slots)
  %slot.offset = mul i64 %slot, %slot.bytes
  %scratch = getelementptr i8, ptr %memory, i64 %slot.offset
  br label %look
look:
  ; Another index?
  %k = phi i64 [ %low, %entry ], [ %k.next, %k.end ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %end
one:
  ; Split, block and outer axes of the index; the range of iterations of this split.
  %split = srem i64 %k, %splits
  %k.block = sdiv i64 %k, %splits
  %block = srem i64 %k.block, %blocks
  %outer = sdiv i64 %k.block, %blocks
  %offsets = call { i64, i64, i64 } @offsets.TYPE(ptr %table, i64 %axes, i64 %outer)
  %outer.lhs = extractvalue { i64, i64, i64 } %offsets, 0
  %outer.rhs = extractvalue { i64, i64, i64 } %offsets, 1
  %outer.out = extractvalue { i64, i64, i64 } %offsets, 2
  %split.offset = mul i64 %split, %split.stride
  %out.offset = add i64 %outer.out, %split.offset
  %first.all = mul i64 %iterations, %split
  %first = sdiv i64 %first.all, %splits
  %split.next = add i64 %split, 1
  %last.all = mul i64 %iterations, %split.next
  %last = sdiv i64 %last.all, %splits
  br label %iteration.look
iteration.look:
  ; Another iteration?
  %iteration = phi i64 [ %first, %one ], [ %iteration.next, %multiplied ]
  %iteration.more = icmp slt i64 %iteration, %last
  br i1 %iteration.more, label %iteration.one, label %k.end
iteration.one:
  ; The step of the sum and the block that is summed; with the result's block these give ranges of u
  ; and j: the block of j is b0, b1, b2 in space, begins at s0, s1, s2 and has sizes n0, n1, n2.
  ; Then where lhs, rhs and out begin.
  %step = sdiv i64 %iteration, %summed.blocks
  %summed = srem i64 %iteration, %summed.blocks
  %step.offsets = call { i64, i64, i64 } @offsets.TYPE(ptr %step.table, i64 %step.axes, i64 %step)
  %step.lhs = extractvalue { i64, i64, i64 } %step.offsets, 0
  %step.rhs = extractvalue { i64, i64, i64 } %step.offsets, 1
  %u.number = select i1 %sums.j, i64 %block, i64 %summed
  %j.number = select i1 %sums.j, i64 %summed, i64 %block
  %u.start = mul i64 %u.number, %u.block
  %u.rest = sub i64 %u.size, %u.start
  %u.count = call i64 @llvm.smin.i64(i64 %u.block, i64 %u.rest)
  %b2 = srem i64 %j.number, %j2.blocks
  %b01 = sdiv i64 %j.number, %j2.blocks
  %b1 = srem i64 %b01, %j1.blocks
  %b0 = sdiv i64 %b01, %j1.blocks
  %s0 = mul i64 %b0, %j0.block
  %s1 = mul i64 %b1, %j1.block
  %s2 = mul i64 %b2, %j2.block
  %rest0 = sub i64 %j0.size, %s0
  %rest1 = sub i64 %j1.size, %s1
  %rest2 = sub i64 %j2.size, %s2
  %n0 = call i64 @llvm.smin.i64(i64 %j0.block, i64 %rest0)
  %n1 = call i64 @llvm.smin.i64(i64 %j1.block, i64 %rest1)
  %n2 = call i64 @llvm.smin.i64(i64 %j2.block, i64 %rest2)
  %n01 = mul i64 %n0, %n1
  %j.count = mul i64 %n01, %n2
  %flat0 = mul i64 %s0, %j1.size
  %flat01 = add i64 %flat0, %s1
  %flat1 = mul i64 %flat01, %j2.size
  %flat = add i64 %flat1, %s2
  %u.lhs.offset = mul i64 %u.start, %u.lhs
  %l0 = add i64 %outer.lhs, %step.lhs
  %l1 = add i64 %l0, %u.lhs.offset
  %lhs.at = getelementptr i8, ptr %lhs, i64 %l1
  %u.rhs.offset = mul i64 %u.start, %u.rhs
  %j.rhs.offset = mul i64 %flat, %j.rhs
  %r0 = add i64 %outer.rhs, %step.rhs
  %r1 = add i64 %r0, %u.rhs.offset
  %r2 = add i64 %r1, %j.rhs.offset
  %rhs.at = getelementptr i8, ptr %rhs, i64 %r2
  %u.out.offset = mul i64 %u.start, %u.out
  %j.out.offset = mul i64 %flat, %j.out
  %o1 = add i64 %out.offset, %u.out.offset
  %o2 = add i64 %o1, %j.out.offset
  %out.at = getelementptr i8, ptr %out, i64 %o2
  %iu = mul i64 %i.size, %u.count
  switch i64 %layout, label %in.position [
    i64 1, label %rows
    i64 2, label %columns
  ]
in.position:
  ; lhs has P's layout already: BLAS reads it in place.
  %j.lhs.offset = mul i64 %flat, %j.lhs
  %lhs.block = getelementptr i8, ptr %lhs.at, i64 %j.lhs.offset
  br label %multiply
rows:
  ; [(u, i), j] in the slot.
  call void @pack.rows.TYPE(ptr %arguments, ptr %lhs.at, i64 %u.count, i64 %s0, i64 %s1, i64 %s2, i64 %n0, i64 %n1, i64 %n2, ptr %scratch)
  br label %multiply
columns:
  ; [j, (i, u)] in the slot.
  call void @pack.columns.TYPE(ptr %arguments, ptr %lhs.at, i64 %u.count, i64 %s0, i64 %s1, i64 %s2, i64 %n0, i64 %n1, i64 %n2, ptr %scratch)
  br label %multiply
multiply:
  ; The first iteration overwrites the result, later ones add to it.
  %p = phi ptr [ %lhs.block, %in.position ], [ %scratch, %rows ], [ %scratch, %columns ]
  %leading.p = phi i64 [ %leading.lhs, %in.position ], [ %j.count, %rows ], [ %iu, %columns ]
  %x = select i1 %sums.j, i64 %iu, i64 %j.count
  %depth = select i1 %sums.j, i64 %j.count, i64 %iu
  %is.first = icmp eq i64 %iteration, %first
  %beta = select i1 %is.first, ELEMENT 0.0, ELEMENT 1.0
  br i1 %rhs.first, label %by.rhs, label %by.p
by.rhs:
  ; o stands for rows: rhs on the left, P on the right.
  call void %gemm(i32 101, i32 %transpose.rhs, i32 %transpose.p, i64 %o.size, i64 %x, i64 %depth, ELEMENT 1.0, ptr %rhs.at, i64 %leading.rhs, ptr %p, i64 %leading.p, ELEMENT %beta, ptr %out.at, i64 %leading.out)
  br label %multiplied
by.p:
  ; o stands for columns: P on the left.
  call void %gemm(i32 101, i32 %transpose.p, i32 %transpose.rhs, i64 %x, i64 %o.size, i64 %depth, ELEMENT 1.0, ptr %p, i64 %leading.p, ptr %rhs.at, i64 %leading.rhs, ELEMENT %beta, ptr %out.at, i64 %leading.out)
  br label %multiplied
multiplied:
  ; The next iteration.
  %iteration.next = add i64 %iteration, 1
  br label %iteration.look
k.end:
  ; The next index.
  %k.next = add i64 %k, 1
  br label %look
end:
  ; Give the slot back, behind all that was written to it.
  call void @release(ptr %taken, i64 %slot)
  ret void
}

; The sum of several arrays of one layout, in order, into another layout. Arguments: target, source,
; number of arrays, elements between them, number of outer axes, size of the inner one and its
; strides in source and target, then the same for each outer one. An index is a row of inner ones.
define void @gf_sum_partials_TYPE(ptr %arguments, i64 %low, i64 %high) {
entry:
  ; All that does not depend on the row.
  %target.wide = call i64 @integer.TYPE(ptr %arguments, i64 0)
  %target = inttoptr i64 %target.wide to ptr
  %source.wide = call i64 @integer.TYPE(ptr %arguments, i64 1)
  %source = inttoptr i64 %source.wide to ptr
  %splits = call i64 @integer.TYPE(ptr %arguments, i64 2)
  %between = call i64 @integer.TYPE(ptr %arguments, i64 3)
  %dims = call i64 @integer.TYPE(ptr %arguments, i64 4)
  %size = call i64 @integer.TYPE(ptr %arguments, i64 5)
  %stride = call i64 @integer.TYPE(ptr %arguments, i64 6)
  %target.stride = call i64 @integer.TYPE(ptr %arguments, i64 7)
  %outer = getelementptr i64, ptr %arguments, i64 8
  br label %row
row:
  ; Another row?
  %k = phi i64 [ %low, %entry ], [ %k.next, %row.end ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %decode, label %end
decode:
  ; Another outer axis? Offsets in source and target are those of the axes so far.
  %d = phi i64 [ %dims, %row ], [ %d.next, %dimension ]
  %rest = phi i64 [ %k, %row ], [ %rest.next, %dimension ]
  %offset = phi i64 [ 0, %row ], [ %offset.next, %dimension ]
  %to.offset = phi i64 [ 0, %row ], [ %to.offset.next, %dimension ]
  %left = icmp sgt i64 %d, 0
  br i1 %left, label %dimension, label %start
dimension:
  ; Its size and strides; the remaining index modulo its size is the position along it.
  %d.next = add i64 %d, -1
  %pair = mul i64 %d.next, 3
  %n.at = getelementptr i64, ptr %outer, i64 %pair
  %n = load i64, ptr %n.at
  %s = call i64 @integer.TYPE(ptr %n.at, i64 1)
  %to.s = call i64 @integer.TYPE(ptr %n.at, i64 2)
  %index = srem i64 %rest, %n
  %rest.next = sdiv i64 %rest, %n
  %moved = mul i64 %index, %s
  %offset.next = add i64 %offset, %moved
  %to.moved = mul i64 %index, %to.s
  %to.offset.next = add i64 %to.offset, %to.moved
  br label %decode
start:
  ; Where the row begins in the target.
  %to.row = getelementptr ELEMENT, ptr %target, i64 %to.offset
  br label %split.look
split.look:
  ; Another array?
  %split = phi i64 [ 0, %start ], [ %split.next, %split.end ]
  %split.more = icmp slt i64 %split, %splits
  br i1 %split.more, label %split.one, label %row.end
split.one:
  ; The first one is copied, the others are added in order: results do not depend on threads.
  %split.first = mul i64 %split, %between
  %split.offset = add i64 %split.first, %offset
  %from.row = getelementptr ELEMENT, ptr %source, i64 %split.offset
  %is.first = icmp eq i64 %split, 0
  br i1 %is.first, label %copy, label %add
copy:
  ; Another element?
  %c = phi i64 [ 0, %split.one ], [ %c.next, %copy.one ]
  %c.more = icmp slt i64 %c, %size
  br i1 %c.more, label %copy.one, label %split.end
copy.one:
  ; Overwrites what was there.
  %c.away = mul i64 %c, %stride
  %c.from = getelementptr ELEMENT, ptr %from.row, i64 %c.away
  %c.to.away = mul i64 %c, %target.stride
  %c.to = getelementptr ELEMENT, ptr %to.row, i64 %c.to.away
  %c.value = load ELEMENT, ptr %c.from
  store ELEMENT %c.value, ptr %c.to
  %c.next = add i64 %c, 1
  br label %copy
add:
  ; Another element?
  %a = phi i64 [ 0, %split.one ], [ %a.next, %add.one ]
  %a.more = icmp slt i64 %a, %size
  br i1 %a.more, label %add.one, label %split.end
add.one:
  ; Added to what is there.
  %a.away = mul i64 %a, %stride
  %a.from = getelementptr ELEMENT, ptr %from.row, i64 %a.away
  %a.to.away = mul i64 %a, %target.stride
  %a.to = getelementptr ELEMENT, ptr %to.row, i64 %a.to.away
  %a.value = load ELEMENT, ptr %a.from
  %a.old = load ELEMENT, ptr %a.to
  %a.sum = fadd ELEMENT %a.old, %a.value
  store ELEMENT %a.sum, ptr %a.to
  %a.next = add i64 %a, 1
  br label %add
split.end:
  ; The next array.
  %split.next = add i64 %split, 1
  br label %split.look
row.end:
  ; The next row.
  %k.next = add i64 %k, 1
  br label %row
end:
  ; All rows are summed.
  ret void
}

; Zeros. Arguments: target. Indices are bytes.
define void @gf_zero_TYPE(ptr %arguments, i64 %low, i64 %high) {
  %target.wide = call i64 @integer.TYPE(ptr %arguments, i64 0)
  %target = inttoptr i64 %target.wide to ptr
  %to = getelementptr i8, ptr %target, i64 %low
  %count = sub i64 %high, %low
  call void @llvm.memset.p0.i64(ptr %to, i8 0, i64 %count, i1 false)
  ret void
}

declare <LANES x ELEMENT> @llvm.masked.load.SUFFIX.p0(ptr, i32, <LANES x i1>, <LANES x ELEMENT>)
declare void @llvm.masked.store.SUFFIX.p0(<LANES x ELEMENT>, ptr, i32, <LANES x i1>)
