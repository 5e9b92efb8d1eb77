; A branch: runs one of several programs (execute.ll).

declare i32 @gf_execute(ptr, ptr, ptr)

; Arguments: location of the int32 index (2), index of the last branch, table with a row for each
; branch: code, its registers, their number, their locations.
define i32 @gf_branch(ptr %arguments, ptr %registers, ptr %state) {
  %index.at = call ptr @location(ptr %arguments, ptr %registers)
  %index.narrow = load i32, ptr %index.at
  %index = sext i32 %index.narrow to i64
  %last.at = getelementptr i64, ptr %arguments, i64 2
  %last = load i64, ptr %last.at
  %table.at = getelementptr i64, ptr %arguments, i64 3
  %table = load ptr, ptr %table.at
  %low = call i64 @llvm.smax.i64(i64 %index, i64 0)
  %chosen = call i64 @llvm.smin.i64(i64 %low, i64 %last)
  %row.offset = mul i64 %chosen, 4
  %row = getelementptr i64, ptr %table, i64 %row.offset
  %code = load ptr, ptr %row
  %own.at = getelementptr i64, ptr %row, i64 1
  %own = load ptr, ptr %own.at
  %count.at = getelementptr i64, ptr %row, i64 2
  %count = load i64, ptr %count.at
  %locations.at = getelementptr i64, ptr %row, i64 3
  %locations = load ptr, ptr %locations.at
  call void @bind(ptr %own, i64 %count, ptr %locations, i64 2, ptr %registers)
  %status = call i32 @gf_execute(ptr %code, ptr %own, ptr %state)
  ret i32 %status
}
