; The address that a place stands for (execute.ll).
define internal ptr @place(ptr %words, ptr %registers) {
  %number = load i64, ptr %words
  %offset.at = getelementptr i64, ptr %words, i64 1
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

; registers[k] = the k-th place of ``places``, which lie ``stride`` words apart, for k < count.
define internal void @bind(ptr %into, i64 %count, ptr %places, i64 %stride, ptr %registers) {
entry:
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %end
one:
  %offset = mul i64 %k, %stride
  %place.at = getelementptr i64, ptr %places, i64 %offset
  %value = call ptr @place(ptr %place.at, ptr %registers)
  %into.at = getelementptr ptr, ptr %into, i64 %k
  store ptr %value, ptr %into.at
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}

; The body's registers for iteration ``turn``: words of ``table`` for each register are the places
; of the first, of odd and of even later iterations, and bytes per element.
define internal void @bind_turn(
    ptr %into, i64 %count, ptr %table, i64 %turn, i64 %element, ptr %registers) {
entry:
  %odd = and i64 %turn, 1
  %is.odd = icmp ne i64 %odd, 0
  %later = select i1 %is.odd, i64 2, i64 4
  %is.first = icmp eq i64 %turn, 0
  %column = select i1 %is.first, i64 0, i64 %later
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %end
one:
  %row.offset = mul i64 %k, 7
  %row = getelementptr i64, ptr %table, i64 %row.offset
  %place.at = getelementptr i64, ptr %row, i64 %column
  %base = call ptr @place(ptr %place.at, ptr %registers)
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
