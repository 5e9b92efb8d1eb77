; One of several programs (execute.ll).

declare i32 @gf_execute(ptr, ptr, ptr)

; Words: place of the int32 number (2), the last branch's number, table of 4 words for each branch:
; code, its registers, their number, their places.
define i32 @gf_branch(ptr %words, ptr %registers, ptr %state) {
  %number.at = call ptr @place(ptr %words, ptr %registers)
  %number.narrow = load i32, ptr %number.at
  %number = sext i32 %number.narrow to i64
  %last.at = getelementptr i64, ptr %words, i64 2
  %last = load i64, ptr %last.at
  %table.at = getelementptr i64, ptr %words, i64 3
  %table = load ptr, ptr %table.at
  %low = call i64 @llvm.smax.i64(i64 %number, i64 0)
  %chosen = call i64 @llvm.smin.i64(i64 %low, i64 %last)
  %row.offset = mul i64 %chosen, 4
  %row = getelementptr i64, ptr %table, i64 %row.offset
  %code = load ptr, ptr %row
  %own.at = getelementptr i64, ptr %row, i64 1
  %own = load ptr, ptr %own.at
  %count.at = getelementptr i64, ptr %row, i64 2
  %count = load i64, ptr %count.at
  %places.at = getelementptr i64, ptr %row, i64 3
  %places = load ptr, ptr %places.at
  call void @bind(ptr %own, i64 %count, ptr %places, i64 2, ptr %registers)
  %status = call i32 @gf_execute(ptr %code, ptr %own, ptr %state)
  ret i32 %status
}
