; One launch of a kernel for several argument blocks, the segments, whose ranges are concatenated.
; Arguments: the kernel, whether it has no axis to split, the number of segments, then three for
; each: its start in the concatenated range, its argument block, its extent. Without an axis to
; split, the thread whose range contains the start of a segment runs all of it.
define void @gf_segments(ptr %table, i64 %low, i64 %high) {
entry:
  %kernel = load ptr, ptr %table
  %whole.at = getelementptr i64, ptr %table, i64 1
  %whole.flag = load i64, ptr %whole.at
  %whole = icmp ne i64 %whole.flag, 0
  %count.at = getelementptr i64, ptr %table, i64 2
  %count = load i64, ptr %count.at
  %rows = getelementptr i64, ptr %table, i64 3
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %next, %skip ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %end
one:
  %row = mul i64 %k, 3
  %start.at = getelementptr i64, ptr %rows, i64 %row
  %start = load i64, ptr %start.at
  %arguments.at = getelementptr i64, ptr %start.at, i64 1
  %arguments = load ptr, ptr %arguments.at
  %extent.at = getelementptr i64, ptr %start.at, i64 2
  %extent = load i64, ptr %extent.at
  %begun = icmp slt i64 %start, %high
  br i1 %begun, label %inside, label %end
inside:
  %before = sub i64 %low, %start
  %first = call i64 @llvm.smax.i64(i64 %before, i64 0)
  br i1 %whole, label %all, label %some
all:
  %mine = icmp eq i64 %first, 0
  br i1 %mine, label %run.all, label %skip
run.all:
  call void %kernel(ptr %arguments, i64 0, i64 1)
  br label %skip
some:
  %reach = sub i64 %high, %start
  %last = call i64 @llvm.smin.i64(i64 %reach, i64 %extent)
  %any = icmp slt i64 %first, %last
  br i1 %any, label %run.some, label %skip
run.some:
  call void %kernel(ptr %arguments, i64 %first, i64 %last)
  br label %skip
skip:
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}
