/* A stand-in for CUDA on a machine without a GPU: the calls that CuPy and gpuflow make of it.

   Device memory is memory of the host. Streams are queues, which run at once or, with
   FAKE_CUDA_LATE=1, when somebody waits. Kernels are run by a callback. What CUDA refuses is
   refused: frees of unknown memory, copies out of bounds, work for a device that is not the
   current one, a driver's call in a thread without a context, waiting for a stream that is captured,
   launches of unloaded modules, shared memory beyond what a function was allowed.

   Environment, read at the first call:
     FAKE_CUDA_DEVICES  how many (1)           FAKE_CUDA_MEMORY      bytes of each (1 << 30)
     FAKE_CUDA_LATE     1: queues              FAKE_CUDA_CAPABILITY  as 90 (90)
     FAKE_CUDA_LOG      1: what was refused, to stderr

   Built from NVIDIA's headers, so that the compiler checks every signature. Source: NVIDIA, CUDA
   Runtime API and CUDA Driver API. */

#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_DEVICES = 8, MOST_PARAMETERS = 512, ALIGNMENT = 256, MOST_SHARED = 227 << 10,
    SHARED_BY_DEFAULT = 48 << 10
};

/* --- one lock; who waits for it does not keep Python's --- */

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int (*has_python)(void);
static void *(*leave_python)(void);
static void (*enter_python)(void *);

static void take(void) {
    if (pthread_mutex_trylock(&lock) == 0) return;
    if (has_python && has_python()) {
        void *state = leave_python();
        pthread_mutex_lock(&lock);
        enter_python(state);
    } else {
        pthread_mutex_lock(&lock);
    }
}

static void drop(int *unused) { (void)unused; pthread_mutex_unlock(&lock); }
#define LOCKED int held __attribute__((cleanup(drop), unused)) = (take(), 0)

/* --- what there is --- */

typedef struct Stream Stream;
typedef struct { long long marked, done; struct timespec time; int device, timed, captured, users, is_gone; } Event;
typedef struct { char *image; size_t size; int device, is_gone; } Module;
typedef struct {
    Module *module;
    char *name;
    int device, count, words, sizes[MOST_PARAMETERS], static_bytes, most_dynamic;
    long long number;
} Function;

typedef enum { COPY, COPY_KEPT, FILL, LAUNCH, MARK, WAIT, HOST } Kind;
typedef struct Op {
    struct Op *next;
    Kind kind;
    int device, value, width;
    char *to, *from;
    size_t count;
    Function *function;
    unsigned shape[7];
    uint64_t *words;
    Event *event;
    long long mark;
    void (*host)(void *);
    void *data;
} Op;

typedef struct { Op *op; } Node;
typedef struct { Node **nodes; int count; } Graph;
typedef struct { Op **ops; Node **nodes; int count, device; } Exec;

struct Stream {
    int device, blocking, busy, invalid;
    unsigned long long capture;
    Graph *graph;
    Stream *forward; /* to the stream behind a mark, while one waits */
    Op *first, *last;
    Stream *next;
};

typedef struct { char *start; size_t size, room; int device, pinned; } Piece;

static int devices, is_late, is_logged, capability;
static size_t capacity, used[MOST_DEVICES], most_used[MOST_DEVICES];
static int failed[MOST_DEVICES], reaches[MOST_DEVICES][MOST_DEVICES];
static Stream defaults[MOST_DEVICES], *streams;
static Piece *pieces;
static int piece_count, piece_room;
static long long version, marks, functions;
static unsigned long long captures;
static __thread int current_device, has_context;
static __thread cudaError_t last_error;

typedef int (*Describe)(int device, const void *image, size_t size, const char *name,
                        long long number, int *sizes, int room, int *static_bytes);
typedef int (*Launch)(int device, long long number, const unsigned *shape, const uint64_t *words,
                      int count);
static Describe describe;
static Launch launch;
static long long launches_given[MOST_DEVICES];

static long long refusals, launched, replays, changes, recordings, pinned_bytes, captures_done;
static long long modules, graphs;

static long long number_of(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoll(text) : otherwise;
}

static void start(void) {
    static int is_started;
    if (__atomic_load_n(&is_started, __ATOMIC_ACQUIRE)) return;
    LOCKED;
    if (is_started) return;
    devices = (int)number_of("FAKE_CUDA_DEVICES", 1);
    capacity = (size_t)number_of("FAKE_CUDA_MEMORY", 1LL << 30);
    is_late = (int)number_of("FAKE_CUDA_LATE", 0);
    is_logged = (int)number_of("FAKE_CUDA_LOG", 0);
    capability = (int)number_of("FAKE_CUDA_CAPABILITY", 90);
    if (devices > MOST_DEVICES) devices = MOST_DEVICES;
    for (int k = 0; k < MOST_DEVICES; k++) defaults[k].device = k, defaults[k].blocking = 1;
    has_python = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
    leave_python = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
    enter_python = (void (*)(void *))dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
    __atomic_store_n(&is_started, 1, __ATOMIC_RELEASE);
}

/* --- calls that wait, and who keeps Python's lock meanwhile --- */

enum { MOST_CALLS = 128, MOST_NAME = 48, HOLD_MILLISECONDS = 3000 };
static char with_python[MOST_CALLS][MOST_NAME]; /* calls that were made with Python's lock */
static int with_python_count;
static char held_call[MOST_NAME];
static int hold_state; /* 0: not called yet, 1: it waits, 2: a peer has launched, 3: none came */

static long long given_to_others(int device) {
    long long sum = 0;
    for (int k = 0; k < MOST_DEVICES; k++) sum += k == device ? 0 : launches_given[k];
    return sum;
}

static void note_python(const char *call) {
    if (!has_python || !has_python()) return;
    for (int k = 0; k < with_python_count; k++)
        if (!strcmp(with_python[k], call)) return;
    if (with_python_count < MOST_CALLS)
        snprintf(with_python[with_python_count++], MOST_NAME, "%s", call);
}

/* At the start of each call: it may have to wait until another device has been given a kernel, as a
   GPU waits that runs its half of a collective. */
void fake_enter(const char *call) {
    start();
    note_python(call);
    if (hold_state != 0 || strcmp(held_call, call)) return;
    long long before = given_to_others(current_device);
    __atomic_store_n(&hold_state, 1, __ATOMIC_SEQ_CST);
    for (int k = 0; k < HOLD_MILLISECONDS; k++) {
        if (given_to_others(current_device) != before) {
            __atomic_store_n(&hold_state, 2, __ATOMIC_SEQ_CST);
            return;
        }
        usleep(1000);
    }
    __atomic_store_n(&hold_state, 3, __ATOMIC_SEQ_CST);
}

static int refuse(int status, const char *call, const char *why) {
    refusals++;
    if (is_logged) fprintf(stderr, "fake_cuda: %s gives %d: %s\n", call, status, why);
    last_error = (cudaError_t)status;
    return status;
}
#define REFUSE(status, why) return refuse(status, __func__, why)

/* --- memory --- */

static Piece *piece_of(const void *address) {
    for (int k = 0; k < piece_count; k++) {
        Piece *piece = &pieces[k];
        if ((char *)address >= piece->start && (char *)address < piece->start + piece->size)
            return piece;
    }
    return NULL;
}

static int is_on_device(const void *address, size_t count) {
    Piece *piece = piece_of(address);
    return piece && !piece->pinned && (char *)address + count <= piece->start + piece->size;
}

static int is_pinned(const void *address) {
    Piece *piece = piece_of(address);
    return piece && piece->pinned;
}

static void *new_piece(size_t size, int device, int pinned) {
    void *start = NULL;
    size_t room = (size + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (posix_memalign(&start, 512, room)) return NULL;
    memset(start, 0xA5, room);
    if (piece_count == piece_room) {
        piece_room = 2 * piece_room + 16;
        pieces = realloc(pieces, piece_room * sizeof *pieces);
    }
    pieces[piece_count++] = (Piece){start, size, room, device, pinned};
    version++;
    return start;
}

static int run_stream(Stream *stream, Event *until, long long mark);
static Node *add_node(Graph *graph, Op *op);

static int run_device(int device) {
    int status = run_stream(&defaults[device], NULL, 0);
    for (Stream *one = streams; one; one = one->next)
        if (one->device == device) {
            int now = run_stream(one, NULL, 0);
            if (!status) status = now;
        }
    return status ? status : failed[device];
}

/* --- streams --- */

static void fail(int device, int status) { if (!failed[device]) failed[device] = status; }

static void let_go(Event *event) {
    if (event->is_gone && event->users == 0) free(event);
}

static void delete_op(Op *op) {
    if (op->kind == COPY_KEPT) free(op->from);
    if (op->event) op->event->users--, let_go(op->event);
    free(op->words);
    free(op);
}

static void do_op(Op *op) {
    if (failed[op->device] && op->kind != MARK) return;
    switch (op->kind) {
    case COPY:
    case COPY_KEPT:
        memmove(op->to, op->from, op->count);
        break;
    case FILL:
        for (size_t k = 0; k < op->count; k++)
            memcpy(op->to + k * op->width, &op->value, op->width);
        break;
    case LAUNCH: {
        Function *function = op->function;
        launched++;
        if (function->module->is_gone) {
            fail(op->device, refuse(400, "launch", "the module is unloaded before it runs"));
            break;
        }
        if (launch) {
            int status = launch(op->device, function->number, op->shape, op->words,
                                function->words);
            if (status) fail(op->device, status);
        }
        break;
    }
    case MARK:
        op->event->done = op->mark;
        clock_gettime(CLOCK_MONOTONIC, &op->event->time);
        break;
    case WAIT: {
        Event *event = op->event;
        for (Stream *one = streams; one && event->done < op->mark; one = one->next)
            run_stream(one, event, op->mark);
        for (int k = 0; k < devices && event->done < op->mark; k++)
            run_stream(&defaults[k], event, op->mark);
        break;
    }
    case HOST:
        op->host(op->data);
    }
}

/* Run a stream, or until a mark is reached that may be in it. */
static int run_stream(Stream *stream, Event *until, long long mark) {
    if (until) {
        int is_there = 0;
        for (Op *op = stream->first; op && !is_there; op = op->next)
            is_there = op->kind == MARK && op->event == until && op->mark <= mark;
        if (!is_there) return 0;
    }
    while (stream->first && !stream->busy && !(until && until->done >= mark)) {
        Op *op = stream->first;
        stream->first = op->next;
        if (!stream->first) stream->last = NULL;
        stream->busy = 1;
        do_op(op);
        stream->busy = 0;
        delete_op(op);
    }
    return failed[stream->device];
}

static Op *copy_of(const Op *op) {
    Op *made = malloc(sizeof *made);
    *made = *op;
    made->next = NULL;
    if (op->words) {
        size_t bytes = op->function->words * sizeof *op->words;
        made->words = malloc(bytes + 8);
        memcpy(made->words, op->words, bytes);
    }
    return made;
}

static Op *new_op(Kind kind, Stream *stream) {
    Op *op = calloc(1, sizeof *op);
    op->kind = kind, op->device = stream->device;
    return op;
}

static void push(Stream *stream, Op *op) {
    if (stream->last) stream->last->next = op;
    else stream->first = op;
    stream->last = op;
}

/* Give an op to a stream, or to the graph that it is captured into. */
static int give(Stream *stream, Op *op) {
    if (stream->capture) {
        add_node(stream->graph, op);
        return 0;
    }
    Stream *main = &defaults[stream->device];
    if (stream == main) {
        for (Stream *one = streams; one; one = one->next)
            if (one->blocking && one->device == stream->device) run_stream(one, NULL, 0);
    } else if (stream->blocking) {
        run_stream(main, NULL, 0);
    }
    push(stream, op);
    if (!is_late) run_stream(stream, NULL, 0);
    return 0;
}

static Stream *stream_of(void *handle) {
    if (handle == NULL || handle == (void *)1 || handle == (void *)2)
        return &defaults[current_device];
    for (Stream *one = streams; one; one = one->next)
        if (one == handle) return one;
    return NULL;
}

static int invalidate(Stream *stream) { return stream->invalid = 1; }

static int any_capture(int device) {
    for (Stream *one = streams; one; one = one->next)
        if (one->device == device && one->capture) return invalidate(one);
    return 0;
}

/* The runtime makes the device's context the thread's own. */
#define READY                                                                                   \
    fake_enter(__func__);                                                                       \
    LOCKED;                                                                                     \
    has_context = 1;                                                                            \
    if (failed[current_device]) REFUSE(failed[current_device], "a kernel failed before")
#define STREAM(handle)                                                                          \
    Stream *stream = stream_of(handle);                                                         \
    if (!stream) REFUSE(400, "no such stream")

/* --- the runtime: devices --- */

static const struct { int status; const char *name; } NAMES[] = {
    {0, "cudaSuccess"}, {1, "cudaErrorInvalidValue"}, {2, "cudaErrorMemoryAllocation"},
    {35, "cudaErrorInsufficientDriver"}, {100, "cudaErrorNoDevice"},
    {101, "cudaErrorInvalidDevice"}, {201, "cudaErrorDeviceUninitialized"},
    {209, "cudaErrorNoKernelImageForDevice"}, {400, "cudaErrorInvalidResourceHandle"},
    {600, "cudaErrorNotReady"}, {700, "cudaErrorIllegalAddress"},
    {719, "cudaErrorLaunchFailure"}, {801, "cudaErrorNotSupported"},
    {900, "cudaErrorStreamCaptureUnsupported"}, {901, "cudaErrorStreamCaptureInvalidated"},
    {905, "cudaErrorStreamCaptureIsolation"}, {704, "cudaErrorPeerAccessAlreadyEnabled"},
};
static const struct { int status; const char *name; } DRIVER_NAMES[] = {
    {0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {400, "CUDA_ERROR_INVALID_HANDLE"}, {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
};
#define FIND(table)                                                                             \
    for (size_t k = 0; k < sizeof table / sizeof *table; k++)                                   \
        if (table[k].status == (int)status) return table[k].name;                               \
    return "unknown error of the stand-in"

const char *cudaGetErrorName(cudaError_t status) { FIND(NAMES); }
const char *cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }
static const char *driver_name(CUresult status) { FIND(DRIVER_NAMES); }

cudaError_t cudaGetLastError(void) {
    cudaError_t found = last_error;
    last_error = cudaSuccess;
    return found;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaDriverGetVersion(int *found) { return *found = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *found) { return *found = 13000, cudaSuccess; }

cudaError_t cudaGetDeviceCount(int *count) {
    start();
    *count = devices;
    if (devices == 0) REFUSE(cudaErrorNoDevice, "FAKE_CUDA_DEVICES is 0");
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) { return *device = current_device, cudaSuccess; }

cudaError_t cudaSetDevice(int device) {
    fake_enter(__func__);
    if (device < 0 || device >= devices) REFUSE(cudaErrorInvalidDevice, "no such device");
    current_device = device, has_context = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    start();
    if (device < 0 || device >= devices) REFUSE(cudaErrorInvalidDevice, "no such device");
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "stand-in GPU %d", device);
    found->totalGlobalMem = capacity;
    found->sharedMemPerBlock = 48 << 10, found->sharedMemPerBlockOptin = MOST_SHARED;
    found->major = capability / 10, found->minor = capability % 10;
    found->multiProcessorCount = 2, found->warpSize = 32, found->maxThreadsPerBlock = 1024;
    found->maxThreadsPerMultiProcessor = 2048, found->regsPerBlock = 65536;
    found->concurrentKernels = found->unifiedAddressing = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    start();
    (void)device;
    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = 2; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = MOST_SHARED; break;
    default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    start();
    return *can = device != peer && device < devices && peer < devices, cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    READY;
    if (flags || peer == current_device || peer >= devices) REFUSE(1, "no such peer");
    if (reaches[current_device][peer]) return last_error = cudaErrorPeerAccessAlreadyEnabled;
    reaches[current_device][peer] = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int count, int device) {
    snprintf(text, count, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    READY;
    if (any_capture(current_device)) REFUSE(900, "a stream of the device is captured");
    int status = run_device(current_device);
    if (status) REFUSE(status, "a kernel failed");
    return cudaSuccess;
}

/* --- the runtime: memory --- */

cudaError_t cudaMalloc(void **found, size_t size) {
    READY;
    *found = NULL;
    if (size == 0) return cudaSuccess;
    if (used[current_device] + size > capacity) REFUSE(cudaErrorMemoryAllocation, "it is full");
    *found = new_piece(size, current_device, 0);
    if (!*found) REFUSE(cudaErrorMemoryAllocation, "the host is full");
    used[current_device] += size;
    if (used[current_device] > most_used[current_device])
        most_used[current_device] = used[current_device];
    return cudaSuccess;
}

static cudaError_t release(void *address, int pinned, const char *call) {
    Piece *piece = piece_of(address);
    if (!piece || piece->start != address || piece->pinned != pinned)
        return refuse(cudaErrorInvalidValue, call, "not an address that was allocated");
    if (pinned) {
        for (int k = 0; k < devices; k++) run_device(k);
        pinned_bytes -= piece->size;
    } else {
        run_device(piece->device);
        used[piece->device] -= piece->size;
    }
    piece = piece_of(address);
    memset(piece->start, 0x5A, piece->room);
    free(piece->start);
    *piece = pieces[--piece_count];
    version++;
    return cudaSuccess;
}

cudaError_t cudaFree(void *address) {
    READY;
    return address ? release(address, 0, __func__) : cudaSuccess;
}

cudaError_t cudaHostAlloc(void **found, size_t size, unsigned flags) {
    READY;
    (void)flags;
    *found = new_piece(size, current_device, 1);
    pinned_bytes += size;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *address) {
    READY;
    return address ? release(address, 1, __func__) : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    READY;
    *total = capacity, *free_bytes = capacity - used[current_device];
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address) {
    READY;
    Piece *piece = piece_of(address);
    memset(found, 0, sizeof *found);
    if (!piece) return cudaSuccess;
    found->type = piece->pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    found->device = piece->device;
    found->devicePointer = (void *)address;
    found->hostPointer = piece->pinned ? (void *)address : NULL;
    return cudaSuccess;
}

static int copy(Stream *stream, void *to, const void *from, size_t count, int kind, int waits,
                const char *call) {
    if (count == 0) return 0;
    int to_device = is_on_device(to, count), from_device = is_on_device(from, count);
    int to_host = !piece_of(to) || is_pinned(to), from_host = !piece_of(from) || is_pinned(from);
    if (kind == cudaMemcpyDefault)
        kind = from_device ? (to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                           : (to_device ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost);
    int is_right = kind == cudaMemcpyHostToDevice ? to_device && from_host
                 : kind == cudaMemcpyDeviceToHost ? to_host && from_device
                 : kind == cudaMemcpyDeviceToDevice ? to_device && from_device
                                                    : to_host && from_host;
    if (!is_right)
        return refuse(cudaErrorInvalidValue, call, "memory is not where it should be, or ends");
    if (waits && stream->capture) {
        invalidate(stream);
        return refuse(900, call, "the stream is captured");
    }
    Op *op = new_op(COPY, stream);
    op->to = to, op->from = (char *)from, op->count = count;
    int is_pageable = !is_pinned(kind == cudaMemcpyHostToDevice ? from : to);
    if (kind == cudaMemcpyHostToDevice && is_pageable && !stream->capture) {
        op->kind = COPY_KEPT; /* CUDA has read pageable memory when the call returns */
        op->from = malloc(count);
        memcpy(op->from, from, count);
    }
    give(stream, op);
    if (waits || (kind == cudaMemcpyDeviceToHost && is_pageable && !stream->capture))
        return run_stream(stream, NULL, 0);
    return 0;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t handle) {
    READY;
    STREAM(handle);
    return copy(stream, to, from, count, kind, 0, __func__);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t count, enum cudaMemcpyKind kind) {
    READY;
    return copy(&defaults[current_device], to, from, count, kind, 1, __func__);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t count, cudaStream_t handle) {
    READY;
    STREAM(handle);
    Piece *target = piece_of(to), *source = piece_of(from);
    if (!target || !source || target->device != to_device || source->device != from_device)
        REFUSE(cudaErrorInvalidValue, "memory is not where it is said to be");
    return copy(stream, to, from, count, cudaMemcpyDeviceToDevice, 0, __func__);
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device,
                           size_t count) {
    cudaError_t status = cudaMemcpyPeerAsync(to, to_device, from, from_device, count, NULL);
    return status ? status : cudaDeviceSynchronize();
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t count, cudaStream_t handle) {
    READY;
    STREAM(handle);
    if (count == 0) return cudaSuccess;
    if (!is_on_device(to, count)) REFUSE(cudaErrorInvalidValue, "not in memory of the device");
    Op *op = new_op(FILL, stream);
    op->to = to, op->value = value, op->width = 1, op->count = count;
    return give(stream, op);
}

cudaError_t cudaMemset(void *to, int value, size_t count) {
    return cudaMemsetAsync(to, value, count, NULL);
}

/* --- the runtime: streams and events --- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *found, unsigned flags, int priority) {
    READY;
    (void)priority;
    Stream *made = calloc(1, sizeof *made);
    made->device = current_device, made->blocking = !(flags & cudaStreamNonBlocking);
    made->next = streams;
    streams = made;
    *found = (cudaStream_t)made;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *found, unsigned flags) {
    return cudaStreamCreateWithPriority(found, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *found) { return cudaStreamCreateWithFlags(found, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    READY;
    STREAM(handle);
    run_stream(stream, NULL, 0);
    for (Stream **place = &streams; *place; place = &(*place)->next)
        if (*place == stream) {
            *place = stream->next;
            break;
        }
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags) {
    READY;
    STREAM(handle);
    return *flags = stream->blocking ? 0 : cudaStreamNonBlocking, cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
    (void)handle;
    return *priority = 0, cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    READY;
    STREAM(handle);
    if (stream->capture) {
        invalidate(stream);
        REFUSE(900, "the stream is captured");
    }
    int status = run_stream(stream, NULL, 0);
    if (status) REFUSE(status, "a kernel failed");
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    READY;
    STREAM(handle);
    return stream->first ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *found) {
    READY;
    STREAM(handle);
    *found = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t mark, unsigned flags) {
    READY;
    STREAM(handle);
    (void)flags;
    Event *event = (Event *)mark;
    if (stream->capture || event->captured) {
        if (stream->capture) invalidate(stream);
        REFUSE(905, "a captured stream does not wait for others here");
    }
    if (event->marked == 0 || event->done >= event->marked) return cudaSuccess;
    Op *op = new_op(WAIT, stream);
    op->event = event, op->mark = event->marked, event->users++;
    return give(stream, op);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data) {
    READY;
    STREAM(handle);
    Op *op = new_op(HOST, stream);
    op->host = function, op->data = data;
    return give(stream, op);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *found, unsigned flags) {
    READY;
    Event *made = calloc(1, sizeof *made);
    made->device = current_device, made->timed = !(flags & cudaEventDisableTiming);
    *found = (cudaEvent_t)made;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *found) { return cudaEventCreateWithFlags(found, 0); }

static void wait_for(Event *event) {
    Op op = {.kind = WAIT, .event = event, .mark = event->marked, .device = event->device};
    do_op(&op);
}

cudaError_t cudaEventDestroy(cudaEvent_t mark) {
    fake_enter(__func__);
    LOCKED;
    Event *event = (Event *)mark;
    event->is_gone = 1; /* it stays as long as work in a stream uses it */
    let_go(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t mark, cudaStream_t handle) {
    READY;
    STREAM(handle);
    Event *event = (Event *)mark;
    if (event->device != stream->device) REFUSE(400, "event and stream are of two devices");
    if (stream->capture) {
        event->captured = 1;
        return cudaSuccess;
    }
    event->captured = 0;
    Op *op = new_op(MARK, stream);
    op->event = event, op->mark = event->marked = ++marks, event->users++;
    return give(stream, op);
}

cudaError_t cudaEventQuery(cudaEvent_t mark) {
    READY;
    Event *event = (Event *)mark;
    if (event->captured) REFUSE(900, "the event belongs to a capture");
    return event->done >= event->marked ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t mark) {
    READY;
    Event *event = (Event *)mark;
    if (event->captured) REFUSE(900, "the event belongs to a capture");
    wait_for(event);
    if (failed[event->device]) REFUSE(failed[event->device], "a kernel failed");
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t second) {
    READY;
    Event *a = (Event *)first, *b = (Event *)second;
    if (!a->timed || !b->timed) REFUSE(400, "an event has no time");
    if (a->done < a->marked || b->done < b->marked) return cudaErrorNotReady;
    *milliseconds = (float)((b->time.tv_sec - a->time.tv_sec) * 1e3 +
                            (b->time.tv_nsec - a->time.tv_nsec) * 1e-6);
    return cudaSuccess;
}

/* --- the driver: modules and launches --- */

/* The driver works in the context that the thread has. */
#define CONTEXT                                                                                 \
    fake_enter(__func__);                                                                       \
    LOCKED;                                                                                     \
    if (!has_context) REFUSE(CUDA_ERROR_INVALID_CONTEXT, "the thread has no context");          \
    if (failed[current_device]) REFUSE(failed[current_device], "a kernel failed before")

/* No cuInit: NVRTC asks a driver that has it for undocumented tables. */
CUresult cuDriverGetVersion(int *found) { return *found = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *found) { start(); return *found = devices, CUDA_SUCCESS; }

CUresult cuDeviceGet(CUdevice *found, int number) {
    start();
    return *found = number, number < devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuGetErrorName(CUresult status, const char **text) {
    return *text = driver_name(status), CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult status, const char **text) {
    return *text = driver_name(status), CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *found) {
    *found = has_context ? (CUcontext)&defaults[current_device] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *found) { return *found = current_device, CUDA_SUCCESS; }

static size_t size_of_image(const void *image) {
    const Elf64_Ehdr *head = image;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG)) return strlen(image);
    size_t end = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
    size_t other = head->e_phoff + (size_t)head->e_phnum * head->e_phentsize;
    return end > other ? end : other;
}

CUresult cuModuleLoadData(CUmodule *found, const void *image) {
    CONTEXT;
    Module *made = calloc(1, sizeof *made);
    made->size = size_of_image(image), made->device = current_device;
    made->image = malloc(made->size);
    memcpy(made->image, image, made->size);
    int sizes[MOST_PARAMETERS], static_bytes;
    if (describe && describe(current_device, image, made->size, "", 0, sizes, 0, &static_bytes) < 0)
        REFUSE(CUDA_ERROR_NO_BINARY_FOR_GPU, "nobody knows this image");
    *found = (CUmodule)made;
    modules++;
    return CUDA_SUCCESS;
}

/* The memory of the module stays, so that later uses of it are found. */
CUresult cuModuleUnload(CUmodule handle) {
    CONTEXT;
    Module *module = (Module *)handle;
    if (module->is_gone) REFUSE(400, "it is unloaded already");
    if (module->device != current_device) REFUSE(400, "a module of another device");
    module->is_gone = 1;
    modules--;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *found, CUmodule handle, const char *name) {
    CONTEXT;
    Module *module = (Module *)handle;
    Function *made = calloc(1, sizeof *made);
    made->module = module, made->name = strdup(name), made->device = module->device;
    made->number = ++functions;
    if (describe)
        made->count = describe(module->device, module->image, module->size, name, made->number,
                               made->sizes, MOST_PARAMETERS, &made->static_bytes);
    if (made->count < 0) REFUSE(CUDA_ERROR_NOT_FOUND, "the module has no such kernel");
    made->most_dynamic = SHARED_BY_DEFAULT - made->static_bytes;
    for (int k = 0; k < made->count; k++) made->words += (made->sizes[k] + 7) / 8;
    *found = (CUfunction)made;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    CONTEXT;
    Function *function = (Function *)handle;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        REFUSE(CUDA_ERROR_INVALID_VALUE, "not so");
    if (function->static_bytes + value > MOST_SHARED)
        REFUSE(CUDA_ERROR_INVALID_VALUE, "static and dynamic shared memory exceed a block's");
    function->most_dynamic = value;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
    (void)attribute, (void)handle;
    return *value = 0, CUDA_SUCCESS;
}

/* Check a launch and write it into an op, with the parameters of now. */
static int fill_launch(Op *op, CUfunction handle, const unsigned *shape, void **parameters,
                       const char *call) {
    Function *function = (Function *)handle;
    unsigned threads = shape[3] * shape[4] * shape[5];
    if (function->device != op->device) return refuse(400, call, "a kernel of another device");
    if (!threads || threads > 1024 || !shape[0] || !shape[1] || !shape[2] ||
        shape[1] > 65535 || shape[2] > 65535)
        return refuse(1, call, "no such grid or block");
    if (function->module->is_gone) return refuse(400, call, "the module is unloaded");
    if (shape[6] > (unsigned)function->most_dynamic)
        return refuse(1, call, "static and dynamic shared memory exceed what was asked for");
    op->kind = LAUNCH, op->function = function;
    memcpy(op->shape, shape, sizeof op->shape);
    free(op->words);
    op->words = calloc(function->words + 1, sizeof *op->words);
    for (int k = 0, word = 0; k < function->count; k++) {
        memcpy(op->words + word, parameters[k], function->sizes[k]);
        word += (function->sizes[k] + 7) / 8;
    }
    return 0;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream handle,
                        void **parameters, void **extra) {
    CONTEXT;
    STREAM(handle);
    if (extra) REFUSE(1, "parameters come one by one here");
    if (stream->device != current_device) REFUSE(400, "a stream of another device");
    unsigned shape[7] = {gx, gy, gz, bx, by, bz, shared};
    Op *op = new_op(LAUNCH, stream);
    int status = fill_launch(op, function, shape, parameters, __func__);
    if (status) return delete_op(op), status;
    launches_given[current_device]++;
    return give(stream, op);
}

/* --- the driver: graphs --- */

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    CONTEXT;
    STREAM(handle);
    (void)mode;
    if (stream->capture) REFUSE(CUDA_ERROR_ILLEGAL_STATE, "it is captured already");
    if (stream == &defaults[stream->device]) REFUSE(900, "the default stream");
    stream->capture = ++captures, stream->invalid = 0;
    stream->graph = calloc(1, sizeof *stream->graph);
    graphs++;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *found) {
    CONTEXT;
    STREAM(handle);
    if (!stream->capture) REFUSE(CUDA_ERROR_ILLEGAL_STATE, "it is not captured");
    stream->capture = 0;
    *found = NULL;
    if (stream->invalid) {
        graphs--;
        REFUSE(901, "something in between was not allowed");
    }
    *found = (CUgraph)stream->graph;
    captures_done++;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *found, unsigned flags) {
    CONTEXT;
    if (flags) REFUSE(1, "no such flag");
    *found = calloc(1, sizeof(Graph));
    graphs++;
    return CUDA_SUCCESS;
}

static Node *add_node(Graph *graph, Op *op) {
    Node *node = malloc(sizeof *node);
    node->op = op;
    graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof *graph->nodes);
    return graph->nodes[graph->count++] = node;
}

/* Nodes run in the order in which they were added, which must be that of their dependencies. */
static int is_next(const Graph *graph, const CUgraphNode *before, size_t count) {
    if (graph->count == 0) return count == 0;
    return count == 1 && (Node *)before[0] == graph->nodes[graph->count - 1];
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *found, CUgraph handle, const CUgraphNode *before,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS *wanted) {
    CONTEXT;
    Graph *graph = (Graph *)handle;
    if (!is_next(graph, before, count)) REFUSE(1, "the stand-in runs one node after the other");
    unsigned shape[7] = {wanted->gridDimX, wanted->gridDimY, wanted->gridDimZ,
                         wanted->blockDimX, wanted->blockDimY, wanted->blockDimZ,
                         wanted->sharedMemBytes};
    Op *op = new_op(LAUNCH, &defaults[current_device]);
    int status = fill_launch(op, wanted->func, shape, wanted->kernelParams, __func__);
    if (status) return delete_op(op), status;
    *found = (CUgraphNode)add_node(graph, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *found, CUgraph handle, const CUgraphNode *before,
                                  size_t count, CUgraph part_handle) {
    CONTEXT;
    Graph *graph = (Graph *)handle, *part = (Graph *)part_handle;
    if (!is_next(graph, before, count)) REFUSE(1, "the stand-in runs one node after the other");
    if (part->count == 0) REFUSE(1, "nothing was captured");
    for (int k = 0; k < part->count; k++)
        *found = (CUgraphNode)add_node(graph, copy_of(part->nodes[k]->op));
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *found, CUgraph handle,
                                     unsigned long long flags) {
    CONTEXT;
    (void)flags;
    Graph *graph = (Graph *)handle;
    Exec *made = calloc(1, sizeof *made);
    made->count = graph->count, made->device = current_device;
    made->ops = calloc(graph->count + 1, sizeof *made->ops);
    made->nodes = calloc(graph->count + 1, sizeof *made->nodes);
    for (int k = 0; k < graph->count; k++)
        made->ops[k] = copy_of(graph->nodes[k]->op), made->nodes[k] = graph->nodes[k];
    *found = (CUgraphExec)made;
    recordings++;
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    CONTEXT;
    STREAM(stream_handle);
    Exec *exec = (Exec *)handle;
    if (stream->capture) REFUSE(900, "graphs in graphs");
    if (exec->device != stream->device) REFUSE(400, "a graph of another device");
    replays++;
    for (int k = 0; k < exec->count; k++) give(stream, copy_of(exec->ops[k]));
    return CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS *wanted) {
    CONTEXT;
    Exec *exec = (Exec *)handle;
    for (int k = 0; k < exec->count; k++) {
        if (exec->nodes[k] != (Node *)node) continue;
        Op *op = exec->ops[k];
        if (op->kind != LAUNCH) REFUSE(1, "not a kernel");
        unsigned shape[7] = {wanted->gridDimX, wanted->gridDimY, wanted->gridDimZ,
                             wanted->blockDimX, wanted->blockDimY, wanted->blockDimZ,
                             wanted->sharedMemBytes};
        changes++;
        return fill_launch(op, wanted->func, shape, wanted->kernelParams, __func__);
    }
    REFUSE(1, "no node of this graph");
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
    fake_enter(__func__);
    LOCKED;
    Exec *exec = (Exec *)handle;
    for (int k = 0; k < exec->count; k++) delete_op(exec->ops[k]);
    free(exec->ops), free(exec->nodes), free(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle) {
    fake_enter(__func__);
    LOCKED;
    Graph *graph = (Graph *)handle;
    for (int k = 0; k < graph->count; k++) delete_op(graph->nodes[k]->op), free(graph->nodes[k]);
    free(graph->nodes), free(graph);
    graphs--;
    return CUDA_SUCCESS;
}

/* --- for tests --- */

void fake_set_callbacks(Describe one, Launch other) { describe = one, launch = other; }

/* Let the next call of this name wait until another device has been given a kernel. */
void fake_hold(const char *call) {
    snprintf(held_call, MOST_NAME, "%s", call);
    __atomic_store_n(&hold_state, 0, __ATOMIC_SEQ_CST);
}

int fake_hold_state(void) { return __atomic_load_n(&hold_state, __ATOMIC_SEQ_CST); }

/* The calls that were made with Python's lock, one after the other. */
const char *fake_with_python(int number) {
    return number < with_python_count ? with_python[number] : NULL;
}

/* The device memory that there is, as (start, size, device); its version. */
long long fake_memory(uint64_t *found, int room, int *count) {
    LOCKED;
    *count = 0;
    for (int k = 0; k < piece_count && *count < room; k++) {
        if (pieces[k].pinned) continue;
        uint64_t *row = found + 3 * (*count)++;
        row[0] = (uint64_t)pieces[k].start, row[1] = pieces[k].size, row[2] = pieces[k].device;
    }
    return version;
}

long long fake_version(void) { return version; }

/* Counters: refusals, launches, replays, changed nodes, recordings, pinned bytes, captures; and
   how many modules and graphs there are now. */
void fake_counts(long long *found) {
    LOCKED;
    long long all[] = {refusals, launched, replays, changes, recordings, pinned_bytes,
                       captures_done, modules, graphs};
    memcpy(found, all, sizeof all);
}

size_t fake_used(int device, int most) { return most ? most_used[device] : used[device]; }
