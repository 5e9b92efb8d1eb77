; The thread pool: workers claim chunks of a job by compare-and-swap, so that the caller never waits
; for a worker that sleeps. One job runs at a time; a caller that finds the pool busy works alone.
;
; When other processes compete for cores, workers are delayed. Either the caller has done all of the
; work by then, and spinning workers only take its time. Or a worker is preempted within a chunk,
; and the caller waits for it longer than all of its own chunks took. After such a job, the next
; jobs run on the caller alone, for as long as that job took. Each further one doubles that time, up
; to 64 times and 20 ms.
;
; 64-bit fields of @pool, each group on separate cache lines:
;    0  ticket: sequence number << 32 | number of chunks << 16 | next chunk to claim
;   16  chunks that are done
;   32  function  33  its argument  34  extent  35  indices per chunk  36  the call's state
;   48  workers that sleep, or are about to  49  stop: workers return
;   56  busy: a job runs  57  nanoseconds for which jobs still run on the caller alone
;   58  number of times that was doubled
;   64  semaphore on which workers sleep

@pool = internal global [128 x i64] zeroinitializer, align 128

declare i32 @sem_init(ptr, i32, i32)
declare i32 @sem_post(ptr)
declare i32 @sem_wait(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)

; The state (execute.ll) of the call whose job the current thread runs, or null. Thread-local.
@call.key = internal global i32 0
@has.key = internal global i32 0

define internal void @make_key() {
  %has = load i32, ptr @has.key
  %none = icmp eq i32 %has, 0
  br i1 %none, label %make, label %end
make:
  %status = call i32 @pthread_key_create(ptr @call.key, ptr null)
  %fine = icmp eq i32 %status, 0
  %made = zext i1 %fine to i32
  store i32 %made, ptr @has.key
  br label %end
end:
  ret void
}

define internal ptr @current_call() {
  %has = load i32, ptr @has.key
  %some = icmp ne i32 %has, 0
  br i1 %some, label %get, label %none
get:
  %key = load i32, ptr @call.key
  %state = call ptr @pthread_getspecific(i32 %key)
  ret ptr %state
none:
  ret ptr null
}

define internal void @set_current_call(ptr %state) {
  %has = load i32, ptr @has.key
  %some = icmp ne i32 %has, 0
  br i1 %some, label %set, label %end
set:
  %key = load i32, ptr @call.key
  %status = call i32 @pthread_setspecific(i32 %key, ptr %state)
  br label %end
end:
  ret void
}

; Reset the pool to no job and no workers: at the start, and in a forked child.
define void @gf_pool_reset() {
  call void @llvm.memset.p0.i64(ptr align 128 @pool, i8 0, i64 1024, i1 false)
  %semaphore = getelementptr i64, ptr @pool, i64 64
  call i32 @sem_init(ptr %semaphore, i32 0, i32 0)
  call void @make_key()
  ret void
}

; Run chunks of the job with this sequence number until none are left; returns how many it ran.
define internal i64 @work(i64 %sequence) {
entry:
  %done = getelementptr i64, ptr @pool, i64 16
  br label %look
look:
  %own = phi i64 [ 0, %entry ], [ %own, %claim ], [ %own.next, %run ]
  %ticket = load atomic i64, ptr @pool seq_cst, align 8
  %current = lshr i64 %ticket, 32
  %same = icmp eq i64 %current, %sequence
  br i1 %same, label %compare, label %end
compare:
  %next = and i64 %ticket, 65535
  %high = lshr i64 %ticket, 16
  %count = and i64 %high, 65535
  %left = icmp ult i64 %next, %count
  br i1 %left, label %claim, label %end
claim:
  ; The ticket names the job: a late worker cannot claim a chunk of the next one.
  %after = add i64 %ticket, 1
  %pair = cmpxchg ptr @pool, i64 %ticket, i64 %after seq_cst seq_cst
  %claimed = extractvalue { i64, i1 } %pair, 1
  br i1 %claimed, label %run, label %look
run:
  %function.at = getelementptr i64, ptr @pool, i64 32
  %argument.at = getelementptr i64, ptr @pool, i64 33
  %extent.at = getelementptr i64, ptr @pool, i64 34
  %chunk.at = getelementptr i64, ptr @pool, i64 35
  %function = load ptr, ptr %function.at
  %argument = load ptr, ptr %argument.at
  %extent = load i64, ptr %extent.at
  %chunk = load i64, ptr %chunk.at
  %state.at = getelementptr i64, ptr @pool, i64 36
  %state = load ptr, ptr %state.at
  call void @set_current_call(ptr %state)
  %low = mul i64 %next, %chunk
  %full = add i64 %low, %chunk
  %high.end = call i64 @llvm.smin.i64(i64 %full, i64 %extent)
  call void %function(ptr %argument, i64 %low, i64 %high.end)
  %ignored = atomicrmw add ptr %done, i64 1 release
  %own.next = add i64 %own, 1
  br label %look
end:
  ret i64 %own
}

; Nanoseconds of a monotonic clock.
define internal i64 @now() {
  %time = alloca [2 x i64]
  %status = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

; Run function(argument, lo, hi) over 0..extent, in chunks on several threads, and wait for them.
define void @gf_dispatch(ptr %function, ptr %argument, i64 %extent, i64 %chunk) {
entry:
  %busy = getelementptr i64, ptr @pool, i64 56
  %pair = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %free = extractvalue { i64, i1 } %pair, 1
  br i1 %free, label %ask, label %alone
ask:
  %start = call i64 @now()
  %alone.at = getelementptr i64, ptr @pool, i64 57
  %left = load i64, ptr %alone.at
  %shuns = icmp sgt i64 %left, 0
  br i1 %shuns, label %shun, label %publish
shun:
  call void %function(ptr %argument, i64 0, i64 %extent)
  %shun.end = call i64 @now()
  %shun.time = sub i64 %shun.end, %start
  %left.now = sub i64 %left, %shun.time
  store i64 %left.now, ptr %alone.at
  store atomic i64 0, ptr %busy release, align 8
  ret void
alone:
  call void %function(ptr %argument, i64 0, i64 %extent)
  ret void
publish:
  %function.at = getelementptr i64, ptr @pool, i64 32
  %argument.at = getelementptr i64, ptr @pool, i64 33
  %extent.at = getelementptr i64, ptr @pool, i64 34
  %chunk.at = getelementptr i64, ptr @pool, i64 35
  store ptr %function, ptr %function.at
  store ptr %argument, ptr %argument.at
  store i64 %extent, ptr %extent.at
  store i64 %chunk, ptr %chunk.at
  %state.at = getelementptr i64, ptr @pool, i64 36
  %state = call ptr @current_call()
  store ptr %state, ptr %state.at
  %done = getelementptr i64, ptr @pool, i64 16
  store atomic i64 0, ptr %done monotonic, align 8
  %less = add i64 %chunk, -1
  %more = add i64 %extent, %less
  %count = sdiv i64 %more, %chunk
  %old = load atomic i64, ptr @pool monotonic, align 8
  %old.sequence = lshr i64 %old, 32
  %sequence.wide = add i64 %old.sequence, 1
  %sequence = and i64 %sequence.wide, 4294967295
  %sequence.high = shl i64 %sequence, 32
  %count.high = shl i64 %count, 16
  %ticket = or i64 %sequence.high, %count.high
  store atomic i64 %ticket, ptr @pool seq_cst, align 8
  %sleepers.at = getelementptr i64, ptr @pool, i64 48
  %sleepers = load atomic i64, ptr %sleepers.at seq_cst, align 8
  %others = add i64 %count, -1
  %wanted = call i64 @llvm.smin.i64(i64 %sleepers, i64 %others)
  %semaphore = getelementptr i64, ptr @pool, i64 64
  br label %wake
wake:
  %woken = phi i64 [ 0, %publish ], [ %woken.next, %post ]
  %enough = icmp sge i64 %woken, %wanted
  br i1 %enough, label %help, label %post
post:
  call i32 @sem_post(ptr %semaphore)
  %woken.next = add i64 %woken, 1
  br label %wake
help:
  %posted = call i64 @now()
  %own = call i64 @work(i64 %sequence)
  %begun = call i64 @now()
  br label %wait
wait:
  %polls = phi i64 [ 0, %help ], [ %polls.next, %again ]
  %finished = load atomic i64, ptr %done acquire, align 8
  %all = icmp eq i64 %finished, %count
  br i1 %all, label %finish, label %spin
spin:
  call void @pause()
  %polls.next = add i64 %polls, 1
  %long = icmp sgt i64 %polls, 20000
  br i1 %long, label %yield, label %again
yield:
  call i32 @sched_yield()
  br label %again
again:
  br label %wait
finish:
  %finished.at = call i64 @now()
  %took = sub i64 %finished.at, %start
  %waited = sub i64 %finished.at, %begun
  %worked = sub i64 %begun, %posted
  %level.at = getelementptr i64, ptr @pool, i64 58
  %level = load i64, ptr %level.at
  %helped = icmp slt i64 %own, %count
  %late = icmp sgt i64 %waited, %worked
  %lost = call i64 @llvm.smax.i64(i64 %level, i64 3)
  %from = select i1 %late, i64 %lost, i64 %level
  %fine.help = xor i1 %late, true
  %fine = and i1 %helped, %fine.help
  br i1 %fine, label %praise, label %remember
praise:
  store i64 0, ptr %level.at
  br label %end
remember:
  %longer = shl i64 %took, %from
  %shunned = call i64 @llvm.smin.i64(i64 %longer, i64 20000000)
  store i64 %shunned, ptr %alone.at
  %higher = add i64 %from, 1
  %capped = call i64 @llvm.smin.i64(i64 %higher, i64 6)
  store i64 %capped, ptr %level.at
  br label %end
end:
  store atomic i64 0, ptr %busy release, align 8
  ret void
}

; The main loop of a worker: poll the ticket for a while, then sleep. Returns after gf_stop.
define void @gf_worker(ptr %unused, i64 %spins, i64 %unused.too) {
entry:
  %sleepers = getelementptr i64, ptr @pool, i64 48
  %stop.at = getelementptr i64, ptr @pool, i64 49
  %semaphore = getelementptr i64, ptr @pool, i64 64
  %begin = load atomic i64, ptr @pool seq_cst, align 8
  %begin.sequence = lshr i64 %begin, 32
  br label %look
look:
  %last = phi i64 [ %begin.sequence, %entry ], [ %last, %again ], [ %last, %awake ], [ %sequence, %job ]
  %polls = phi i64 [ 0, %entry ], [ %polls.next, %again ], [ 0, %awake ], [ 0, %job ]
  %stop = load atomic i64, ptr %stop.at seq_cst, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %end, label %compare
compare:
  %ticket = load atomic i64, ptr @pool seq_cst, align 8
  %sequence = lshr i64 %ticket, 32
  %new = icmp ne i64 %sequence, %last
  br i1 %new, label %job, label %idle
job:
  %ran = call i64 @work(i64 %sequence)
  br label %look
idle:
  call void @pause()
  %polls.next = add i64 %polls, 1
  %tired = icmp sgt i64 %polls, %spins
  br i1 %tired, label %sleep, label %again
again:
  br label %look
sleep:
  %ignored = atomicrmw add ptr %sleepers, i64 1 seq_cst
  %recheck = load atomic i64, ptr @pool seq_cst, align 8
  %recheck.sequence = lshr i64 %recheck, 32
  %still = icmp eq i64 %recheck.sequence, %last
  %stop.now = load atomic i64, ptr %stop.at seq_cst, align 8
  %going = icmp eq i64 %stop.now, 0
  %may = and i1 %still, %going
  br i1 %may, label %down, label %awake
down:
  call i32 @sem_wait(ptr %semaphore)
  br label %awake
awake:
  %ignored.too = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  br label %look
end:
  ret void
}

; Make workers return.
define void @gf_stop(i64 %workers) {
entry:
  %stop.at = getelementptr i64, ptr @pool, i64 49
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  %semaphore = getelementptr i64, ptr @pool, i64 64
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %next, %post ]
  %more = icmp slt i64 %k, %workers
  br i1 %more, label %post, label %end
post:
  call i32 @sem_post(ptr %semaphore)
  %next = add i64 %k, 1
  br label %look
end:
  ret void
}
