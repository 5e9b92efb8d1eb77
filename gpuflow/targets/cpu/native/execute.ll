; Native programs: a list of instructions over registers that hold addresses.
;
;   0                                 end
;   1  target  register  offset       word at ``target`` = register + offset
;   2  function words extent chunk    function(words, 0, extent), on several threads if
;                                     extent > chunk
;   3  scan                           a loop of known length: gf_scan(words, registers, ...)
;   4  while                          a loop with a condition
;   5  branch                         one of several programs
;   6  apart                          parts of a loop whose turns do not see each other, on several
;                                     threads
;
; A place is two words: a register's number, or -1, and an offset; it stands for their sum.
; Results are 0, or -1 with a Python exception set (a signal's handler or another thread raised).
;
; %state is what a call knows of itself, in words:
;    0  the thread's Python state while it does not hold the GIL, else 0
;    1  the time of the last look at signals
;    2  whether it was interrupted: kernels return, and the program ends
;    3  the thread that called

declare i32 @PyErr_CheckSignals()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare i64 @time(ptr)
declare i64 @pthread_self()

define i32 @gf_execute(ptr %code, ptr %registers, ptr %state) {
entry:
  br label %fetch
fetch:
  %at = phi ptr [ %code, %entry ], [ %at.set, %set ], [ %at.run, %ran ], [ %at.nest, %nested ]
  %operation = load i64, ptr %at
  %one.at = getelementptr i64, ptr %at, i64 1
  %one = load ptr, ptr %one.at
  switch i64 %operation, label %end [
    i64 1, label %set
    i64 2, label %run
    i64 3, label %scan
    i64 4, label %while
    i64 5, label %branch
    i64 6, label %apart
  ]
set:
  %place.at = getelementptr i64, ptr %at, i64 2
  %value = call ptr @place(ptr %place.at, ptr %registers)
  store ptr %value, ptr %one
  %at.set = getelementptr i64, ptr %at, i64 4
  br label %fetch
run:
  %words.at = getelementptr i64, ptr %at, i64 2
  %words = load ptr, ptr %words.at
  %extent.at = getelementptr i64, ptr %at, i64 3
  %extent = load i64, ptr %extent.at
  %chunk.at = getelementptr i64, ptr %at, i64 4
  %chunk = load i64, ptr %chunk.at
  %at.run = getelementptr i64, ptr %at, i64 5
  %large = icmp sgt i64 %extent, %chunk
  br i1 %large, label %pool, label %alone
alone:
  call void %one(ptr %words, i64 0, i64 %extent)
  br label %ran
pool:
  call void @gf_dispatch(ptr %one, ptr %words, i64 %extent, i64 %chunk)
  br label %ran
ran:
  %stopped.at = getelementptr i64, ptr %state, i64 2
  %stopped = load i64, ptr %stopped.at
  %goes.on = icmp eq i64 %stopped, 0
  br i1 %goes.on, label %fetch, label %failed
scan:
  %scanned = call i32 @scan(ptr %one, ptr %registers, ptr %state)
  br label %nested
while:
  %looped = call i32 @while(ptr %one, ptr %registers, ptr %state)
  br label %nested
branch:
  %chosen = call i32 @branch(ptr %one, ptr %registers, ptr %state)
  br label %nested
apart:
  %parted = call i32 @apart(ptr %one, ptr %registers, ptr %state)
  br label %nested
nested:
  %status = phi i32 [ %scanned, %scan ], [ %looped, %while ], [ %chosen, %branch ], [ %parted, %apart ]
  %at.nest = getelementptr i64, ptr %at, i64 2
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %fetch, label %failed
failed:
  ret i32 -1
end:
  ret i32 0
}

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

; Let Python handle what interrupts a thread, about once a second: where a loop goes on for long,
; Ctrl-C ends it, and so does an exception that another thread sets. A worker asks whether the
; thread that called was interrupted.
define internal i32 @signals(ptr %state) {
entry:
  %thread.at = getelementptr i64, ptr %state, i64 3
  %caller = load i64, ptr %thread.at
  %self = call i64 @pthread_self()
  %is.caller = icmp eq i64 %self, %caller
  br i1 %is.caller, label %mine, label %workers
workers:
  %stopped.at = getelementptr i64, ptr %state, i64 2
  %stopped = load atomic i64, ptr %stopped.at monotonic, align 8
  %is.stopped = icmp ne i64 %stopped, 0
  br i1 %is.stopped, label %ends, label %fine
ends:
  ret i32 -1
mine:
  %last.at = getelementptr i64, ptr %state, i64 1
  %now = call i64 @time(ptr null)
  %last = load i64, ptr %last.at
  %same = icmp eq i64 %now, %last
  br i1 %same, label %fine, label %look
fine:
  ret i32 0
look:
  store i64 %now, ptr %last.at
  %thread = load ptr, ptr %state
  %holds = icmp eq ptr %thread, null
  br i1 %holds, label %held, label %released
held:
  %answer = call i32 @interrupted()
  ret i32 %answer
released:
  call void @PyEval_RestoreThread(ptr %thread)
  %answer.too = call i32 @interrupted()
  %again = call ptr @PyEval_SaveThread()
  store ptr %again, ptr %state
  ret i32 %answer.too
}

; Whether an exception arrived; the GIL is held. Those of other threads (PyThreadState_SetAsyncExc)
; arrive where Python runs a function of Python, so one is called, which does nothing; there other
; threads get the GIL as well.
define internal i32 @interrupted() noinline cold {
entry:
  %signal = call i32 @PyErr_CheckSignals()
  %quiet = icmp eq i32 %signal, 0
  br i1 %quiet, label %look, label %failed
look:
  %answer = call ptr @PyObject_CallNoArgs(ptr @gf_do_nothing)
  %raised = icmp eq ptr %answer, null
  br i1 %raised, label %failed, label %fine
fine:
  call void @Py_DecRef(ptr %answer)
  ret i32 0
failed:
  ret i32 -1
}

; Whether a kernel must return: kernels ask now and then in loops of their own, in any thread. The
; one that called looks at signals; workers hear of it through the call's state.
define i32 @gf_interrupted() {
entry:
  %state = call ptr @current_call()
  %none = icmp eq ptr %state, null
  br i1 %none, label %no, label %ask
ask:
  %stopped.at = getelementptr i64, ptr %state, i64 2
  %stopped = load atomic i64, ptr %stopped.at monotonic, align 8
  %is.stopped = icmp ne i64 %stopped, 0
  br i1 %is.stopped, label %yes, label %who
who:
  %thread.at = getelementptr i64, ptr %state, i64 3
  %caller = load i64, ptr %thread.at
  %self = call i64 @pthread_self()
  %is.caller = icmp eq i64 %self, %caller
  br i1 %is.caller, label %look, label %no
look:
  %status = call i32 @signals(ptr %state)
  %quiet = icmp eq i32 %status, 0
  br i1 %quiet, label %no, label %stop
stop:
  store atomic i64 1, ptr %stopped.at monotonic, align 8
  br label %yes
yes:
  ret i32 1
no:
  ret i32 0
}

; Words: length, reverse, code, its registers, their number, table of @bind_turn, iterations
; between two looks at signals less 1 (a power of 2, less 1).
define internal i32 @scan(ptr %words, ptr %registers, ptr %state) {
entry:
  %length = load i64, ptr %words
  %reverse.at = getelementptr i64, ptr %words, i64 1
  %reverse = load i64, ptr %reverse.at
  %code.at = getelementptr i64, ptr %words, i64 2
  %code = load ptr, ptr %code.at
  %own.at = getelementptr i64, ptr %words, i64 3
  %own = load ptr, ptr %own.at
  %count.at = getelementptr i64, ptr %words, i64 4
  %count = load i64, ptr %count.at
  %table.at = getelementptr i64, ptr %words, i64 5
  %table = load ptr, ptr %table.at
  %mask.at = getelementptr i64, ptr %words, i64 6
  %mask = load i64, ptr %mask.at
  %backward = icmp ne i64 %reverse, 0
  %last = add i64 %length, -1
  br label %look
look:
  %turn = phi i64 [ 0, %entry ], [ %next, %checked ]
  %more = icmp slt i64 %turn, %length
  br i1 %more, label %body, label %end
body:
  %mirrored = sub i64 %last, %turn
  %element = select i1 %backward, i64 %mirrored, i64 %turn
  call void @bind_turn(
      ptr %own, i64 %count, ptr %table, i64 %turn, i64 %element, ptr %registers)
  %status = call i32 @gf_execute(ptr %code, ptr %own, ptr %state)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %next.turn, label %failed
next.turn:
  %next = add i64 %turn, 1
  %masked = and i64 %next, %mask
  %due = icmp eq i64 %masked, 0
  br i1 %due, label %check, label %checked
check:
  %signal = call i32 @signals(ptr %state)
  %quiet = icmp eq i32 %signal, 0
  br i1 %quiet, label %checked, label %failed
checked:
  br label %look
failed:
  ret i32 -1
end:
  ret i32 0
}

; Words: condition's code, its registers, their number, their places; body's code, its registers,
; their number, table of @bind_turn; place of the flag (2); copies, their table (7 words: places of
; the output, of the carry after no iteration and after an even number of them, and bytes); mask.
define internal i32 @while(ptr %words, ptr %registers, ptr %state) {
entry:
  %code0 = load ptr, ptr %words
  %own0.at = getelementptr i64, ptr %words, i64 1
  %own0 = load ptr, ptr %own0.at
  %count0.at = getelementptr i64, ptr %words, i64 2
  %count0 = load i64, ptr %count0.at
  %places0.at = getelementptr i64, ptr %words, i64 3
  %places0 = load ptr, ptr %places0.at
  %code.at = getelementptr i64, ptr %words, i64 4
  %code = load ptr, ptr %code.at
  %own.at = getelementptr i64, ptr %words, i64 5
  %own = load ptr, ptr %own.at
  %count.at = getelementptr i64, ptr %words, i64 6
  %count = load i64, ptr %count.at
  %table.at = getelementptr i64, ptr %words, i64 7
  %table = load ptr, ptr %table.at
  %flag.at = getelementptr i64, ptr %words, i64 8
  %flag = call ptr @place(ptr %flag.at, ptr %registers)
  %copies.at = getelementptr i64, ptr %words, i64 10
  %copies = load i64, ptr %copies.at
  %rows.at = getelementptr i64, ptr %words, i64 11
  %rows = load ptr, ptr %rows.at
  %mask.at = getelementptr i64, ptr %words, i64 12
  %mask = load i64, ptr %mask.at
  call void @bind(ptr %own0, i64 %count0, ptr %places0, i64 2, ptr %registers)
  %status0 = call i32 @gf_execute(ptr %code0, ptr %own0, ptr %state)
  %fine0 = icmp eq i32 %status0, 0
  br i1 %fine0, label %look, label %failed
look:
  %turn = phi i64 [ 0, %entry ], [ %next, %checked ]
  %going = load volatile i8, ptr %flag
  %more = icmp ne i8 %going, 0
  br i1 %more, label %body, label %over
body:
  call void @bind_turn(ptr %own, i64 %count, ptr %table, i64 %turn, i64 0, ptr %registers)
  %status = call i32 @gf_execute(ptr %code, ptr %own, ptr %state)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %next.turn, label %failed
next.turn:
  %next = add i64 %turn, 1
  %masked = and i64 %next, %mask
  %due = icmp eq i64 %masked, 0
  br i1 %due, label %check, label %checked
check:
  %signal = call i32 @signals(ptr %state)
  %quiet = icmp eq i32 %signal, 0
  br i1 %quiet, label %checked, label %failed
checked:
  br label %look
over:
  ; After an odd number of iterations the carry lies in the outputs.
  %odd = and i64 %turn, 1
  %is.odd = icmp ne i64 %odd, 0
  br i1 %is.odd, label %end, label %copy
copy:
  %is.none = icmp eq i64 %turn, 0
  %column = select i1 %is.none, i64 2, i64 4
  br label %next.copy
next.copy:
  %k = phi i64 [ 0, %copy ], [ %k.next, %one ]
  %left = icmp slt i64 %k, %copies
  br i1 %left, label %one, label %end
one:
  %row.offset = mul i64 %k, 7
  %row = getelementptr i64, ptr %rows, i64 %row.offset
  %target = call ptr @place(ptr %row, ptr %registers)
  %source.at = getelementptr i64, ptr %row, i64 %column
  %source = call ptr @place(ptr %source.at, ptr %registers)
  %bytes.at = getelementptr i64, ptr %row, i64 6
  %bytes = load i64, ptr %bytes.at
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  %k.next = add i64 %k, 1
  br label %next.copy
failed:
  ret i32 -1
end:
  ret i32 0
}

; Words: place of the int32 number (2), the last branch's number, table of 4 words for each branch:
; code, its registers, their number, their places.
define internal i32 @branch(ptr %words, ptr %registers, ptr %state) {
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

; Words: the number of parts, the registers and the state of the call, which this writes for
; @gf_parts, and for each part the words of its @scan. A part has code and memory of its own.
define internal i32 @apart(ptr %words, ptr %registers, ptr %state) {
  %count = load i64, ptr %words
  %registers.at = getelementptr i64, ptr %words, i64 1
  store ptr %registers, ptr %registers.at
  %state.at = getelementptr i64, ptr %words, i64 2
  store ptr %state, ptr %state.at
  call void @gf_dispatch(ptr @gf_parts, ptr %words, i64 %count, i64 1)
  %stopped.at = getelementptr i64, ptr %state, i64 2
  %stopped = load i64, ptr %stopped.at
  %goes.on = icmp eq i64 %stopped, 0
  %status = select i1 %goes.on, i32 0, i32 -1
  ret i32 %status
}

; Parts %low to %high; words of @apart.
define void @gf_parts(ptr %words, i64 %low, i64 %high) {
entry:
  %registers.at = getelementptr i64, ptr %words, i64 1
  %registers = load ptr, ptr %registers.at
  %state.at = getelementptr i64, ptr %words, i64 2
  %state = load ptr, ptr %state.at
  %parts = getelementptr i64, ptr %words, i64 3
  br label %look
look:
  %k = phi i64 [ %low, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %end
one:
  %part.at = getelementptr ptr, ptr %parts, i64 %k
  %part = load ptr, ptr %part.at
  %status = call i32 @scan(ptr %part, ptr %registers, ptr %state)
  %next = add i64 %k, 1
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %look, label %stop
stop:
  %stopped.at = getelementptr i64, ptr %state, i64 2
  store atomic i64 1, ptr %stopped.at monotonic, align 8
  br label %end
end:
  ret void
}

; A method of Python with METH_FASTCALL: registers are the addresses of the arguments' elements.
; %self and the arguments are NumPy arrays, whose objects hold that address at byte 16; the words
; of %self: code, registers, whether to release the GIL.
define ptr @gf_call(ptr %self, ptr %arguments, i64 %count) {
entry:
  %state = alloca [4 x i64], align 16
  %words.at = getelementptr i8, ptr %self, i64 16
  %words = load ptr, ptr %words.at
  %code = load ptr, ptr %words
  %registers.at = getelementptr i64, ptr %words, i64 1
  %registers = load ptr, ptr %registers.at
  %release.at = getelementptr i64, ptr %words, i64 2
  %release = load i64, ptr %release.at
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %start
one:
  %argument.at = getelementptr ptr, ptr %arguments, i64 %k
  %argument = load ptr, ptr %argument.at
  %data.at = getelementptr i8, ptr %argument, i64 16
  %data = load ptr, ptr %data.at
  %register = getelementptr ptr, ptr %registers, i64 %k
  store ptr %data, ptr %register
  %next = add i64 %k, 1
  br label %look
start:
  %time.at = getelementptr i64, ptr %state, i64 1
  %now = call i64 @time(ptr null)
  store i64 %now, ptr %time.at
  store ptr null, ptr %state
  %stopped.at = getelementptr i64, ptr %state, i64 2
  store i64 0, ptr %stopped.at
  %thread.at = getelementptr i64, ptr %state, i64 3
  %self.thread = call i64 @pthread_self()
  store i64 %self.thread, ptr %thread.at
  %releases = icmp ne i64 %release, 0
  br i1 %releases, label %without, label %with
with:
  %status.with = call i32 @gf_execute(ptr %code, ptr %registers, ptr %state)
  br label %finish
without:
  %thread = call ptr @PyEval_SaveThread()
  store ptr %thread, ptr %state
  ; A handler of signals may have called this from within another call.
  %around = call ptr @current_call()
  call void @set_current_call(ptr %state)
  %status.without = call i32 @gf_execute(ptr %code, ptr %registers, ptr %state)
  call void @set_current_call(ptr %around)
  %thread.now = load ptr, ptr %state
  call void @PyEval_RestoreThread(ptr %thread.now)
  br label %finish
finish:
  %status = phi i32 [ %status.with, %with ], [ %status.without, %without ]
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %none, label %failed
none:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
failed:
  ret ptr null
}

@_Py_NoneStruct = external global i8
@gf_do_nothing = external global i8
