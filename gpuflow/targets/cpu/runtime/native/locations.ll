; The address of a location (execute.ll).
define internal ptr @location(ptr %location, ptr %registers) {
  %number = load i64, ptr %location
  %offset.at = getelementptr i64, ptr %location, i64 1
  %offset = load i64, ptr %offset.at
  %absolute = icmp slt i64 %number, 0
  br i1 %absolute, label %fixed, label %relative
fixed:
  %address = inttoptr i64 %offset to ptr
  ret ptr %address
relative:
  %register = getelementptr ptr, ptr %registers, i64 %number
  %base = load ptr, ptr %register
  %sum = getelementptr i8, ptr %base, i64 %offset
  ret ptr %sum
}

; registers[k] = address of the k-th of ``locations``, ``stride`` integers after the previous one,
; for k < count.
define internal void @bind(ptr %into, i64 %count, ptr %locations, i64 %stride, ptr %registers) {
entry:
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %end
one:
  %offset = mul i64 %k, %stride
  %location.at = getelementptr i64, ptr %locations, i64 %offset
  %value = call ptr @location(ptr %location.at, ptr %registers)
  %into.at = getelementptr ptr, ptr %into, i64 %k
  store ptr %value, ptr %into.at
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}

; The body's registers for an iteration: a row of ``table`` has the locations of a register in the
; first, in odd and in even later iterations, and the bytes per element.
define internal void @bind_iteration(
    ptr %into, i64 %count, ptr %table, i64 %iteration, i64 %element, ptr %registers) {
entry:
  %odd = and i64 %iteration, 1
  %is.odd = icmp ne i64 %odd, 0
  %later = select i1 %is.odd, i64 2, i64 4
  %is.first = icmp eq i64 %iteration, 0
  %column = select i1 %is.first, i64 0, i64 %later
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %end
one:
  %row.offset = mul i64 %k, 7
  %row = getelementptr i64, ptr %table, i64 %row.offset
  %location.at = getelementptr i64, ptr %row, i64 %column
  %base = call ptr @location(ptr %location.at, ptr %registers)
  %stride.at = getelementptr i64, ptr %row, i64 6
  %stride = load i64, ptr %stride.at
  %offset = mul i64 %stride, %element
  %value = getelementptr i8, ptr %base, i64 %offset
  %into.at = getelementptr ptr, ptr %into, i64 %k
  store ptr %value, ptr %into.at
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}
