; The interpreter of native programs: lists of instructions over registers that hold addresses.
;
;   0                                 end
;   1  target  register  offset       slot at ``target`` = register + offset
;   2  function block extent chunk    function(block, 0, extent), on several threads if
;                                     extent > chunk
;   3  function block                 function(block, registers, state): gf_scan, gf_while,
;                                     gf_branch or gf_parallel_loop, which run nested programs
;   4                                 return if the call was interrupted (polls once a second)
;
; A location is a register's index and an offset, whose sum is its address; with index -1, the
; offset is the address.
; Results are 0, or -1 with a Python exception set (a signal handler or another thread raised).
;
; %state is the state of a call, in 64-bit integers:
;    0  the thread's Python state (PyThreadState) while it does not hold the GIL, else 0
;    1  the time of the last poll for signals, in seconds
;    2  whether it was interrupted: kernels return, and the program ends
;    3  the calling thread

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
  %at = phi ptr [ %code, %entry ], [ %at.set, %set ], [ %at.run, %ran ], [ %at.nest, %nest ], [ %at.look, %look ]
  %operation = load i64, ptr %at
  %one.at = getelementptr i64, ptr %at, i64 1
  %one = load ptr, ptr %one.at
  switch i64 %operation, label %end [
    i64 1, label %set
    i64 2, label %run
    i64 3, label %nest
    i64 4, label %look
  ]
set:
  %location.at = getelementptr i64, ptr %at, i64 2
  %value = call ptr @location(ptr %location.at, ptr %registers)
  store ptr %value, ptr %one
  %at.set = getelementptr i64, ptr %at, i64 4
  br label %fetch
run:
  %block.at = getelementptr i64, ptr %at, i64 2
  %block = load ptr, ptr %block.at
  %extent.at = getelementptr i64, ptr %at, i64 3
  %extent = load i64, ptr %extent.at
  %chunk.at = getelementptr i64, ptr %at, i64 4
  %chunk = load i64, ptr %chunk.at
  %at.run = getelementptr i64, ptr %at, i64 5
  %large = icmp sgt i64 %extent, %chunk
  br i1 %large, label %pool, label %alone
alone:
  call void %one(ptr %block, i64 0, i64 %extent)
  br label %ran
pool:
  call void @gf_dispatch(ptr %one, ptr %block, i64 %extent, i64 %chunk)
  br label %ran
ran:
  %stopped.at = getelementptr i64, ptr %state, i64 2
  %stopped = load i64, ptr %stopped.at
  %goes.on = icmp eq i64 %stopped, 0
  br i1 %goes.on, label %fetch, label %failed
nest:
  %inner.at = getelementptr i64, ptr %at, i64 2
  %inner = load ptr, ptr %inner.at
  %status = call i32 %one(ptr %inner, ptr %registers, ptr %state)
  %at.nest = getelementptr i64, ptr %at, i64 3
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %fetch, label %failed
look:
  %at.look = getelementptr i64, ptr %at, i64 1
  %signal = call i32 @gf_signals(ptr %state)
  %quiet = icmp eq i32 %signal, 0
  br i1 %quiet, label %fetch, label %failed
failed:
  ret i32 -1
end:
  ret i32 0
}

; Poll for interrupts: let Python run signal handlers and raise asynchronous exceptions, about once
; a second. So Ctrl-C ends a long loop, as does an exception that another thread sets. In a worker,
; check whether the calling thread was interrupted.
define i32 @gf_signals(ptr %state) {
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

; Whether an exception is raised; the GIL must be held. Exceptions that other threads set
; (PyThreadState_SetAsyncExc) are raised only while Python code runs, so an empty Python function is
; called. That also lets other threads acquire the GIL.
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

; Whether a kernel must return. Kernels call it regularly in long loops, in any thread. The calling
; thread polls for signals; workers read the call's state.
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
  %status = call i32 @gf_signals(ptr %state)
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

; A Python method with METH_FASTCALL: it sets the registers to the addresses of the arguments'
; elements, and runs the program. %self and the arguments are NumPy arrays, whose objects have that
; address at byte 16. %self contains code, registers, and whether to release the GIL.
define ptr @gf_call(ptr %self, ptr %arguments, i64 %count) {
entry:
  %state = alloca [4 x i64], align 16
  %fields.at = getelementptr i8, ptr %self, i64 16
  %fields = load ptr, ptr %fields.at
  %code = load ptr, ptr %fields
  %registers.at = getelementptr i64, ptr %fields, i64 1
  %registers = load ptr, ptr %registers.at
  %release.at = getelementptr i64, ptr %fields, i64 2
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
  ; A signal handler may have called this during another call.
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
