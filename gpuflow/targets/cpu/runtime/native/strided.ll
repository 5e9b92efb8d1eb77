; A strided copy to row-major memory; elements have BITS bits. An index is one row of the target.
; Arguments: target, source, number of outer dimensions, size of the inner one and its stride in
; bytes, then size and stride of each outer dimension, outermost first.
define void @gf_strided_BYTES(ptr %arguments, i64 %low, i64 %high) {
entry:
  %target = load ptr, ptr %arguments
  %p1 = getelementptr i64, ptr %arguments, i64 1
  %source = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %arguments, i64 2
  %dims = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %arguments, i64 3
  %size = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %arguments, i64 4
  %stride = load i64, ptr %p4
  %outer = getelementptr i64, ptr %arguments, i64 5
  br label %row
row:
  %k = phi i64 [ %low, %entry ], [ %k.next, %row.end ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %decode, label %end
decode:
  %d = phi i64 [ %dims, %row ], [ %d.next, %dimension ]
  %rest = phi i64 [ %k, %row ], [ %rest.next, %dimension ]
  %offset = phi i64 [ 0, %row ], [ %offset.next, %dimension ]
  %left = icmp sgt i64 %d, 0
  br i1 %left, label %dimension, label %start
dimension:
  %d.next = add i64 %d, -1
  %pair = shl i64 %d.next, 1
  %n.at = getelementptr i64, ptr %outer, i64 %pair
  %n = load i64, ptr %n.at
  %s.at = getelementptr i64, ptr %n.at, i64 1
  %s = load i64, ptr %s.at
  %index = srem i64 %rest, %n
  %rest.next = sdiv i64 %rest, %n
  %moved = mul i64 %index, %s
  %offset.next = add i64 %offset, %moved
  br label %decode
start:
  %from.row = getelementptr i8, ptr %source, i64 %offset
  %row.first = mul i64 %k, %size
  %to.row = getelementptr iBITS, ptr %target, i64 %row.first
  br label %element
element:
  %j = phi i64 [ 0, %start ], [ %j.next, %one ]
  %in.row = icmp slt i64 %j, %size
  br i1 %in.row, label %one, label %row.end
one:
  %away = mul i64 %j, %stride
  %from = getelementptr i8, ptr %from.row, i64 %away
  %to = getelementptr iBITS, ptr %to.row, i64 %j
  %value = load iBITS, ptr %from, align 1
  store iBITS %value, ptr %to, align 1
  %j.next = add i64 %j, 1
  br label %element
row.end:
  %k.next = add i64 %k, 1
  br label %row
end:
  ret void
}
