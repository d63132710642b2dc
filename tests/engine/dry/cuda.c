/* A CUDA runtime, driver and cuBLAS that keep the books and compute nothing: for dry runs of the GPU path where there is no GPU.

   Loaded before torch's own (LD_PRELOAD), in a CUDA build of torch, and as libcuda.so.1 for Triton, which really compiles. Memory is host memory, of
   the size of an H200's; copies of up to 64 MiB are made, kernels are not run, so that what is read back means nothing. What a GPU refuses
   while a stream is captured is refused here: waiting, allocating, loading a module, copying from pageable memory. Whatever looks wrong is said on
   stderr in a line that begins with DRY-CUDA. DRY_DEVICES, DRY_SM: how many GPUs, and of which compute capability (default 1, 90). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <driver_types.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef cudaError_t Error;
typedef struct { int device, capturing, mode, invalid; pthread_t owner; unsigned long long id; long nodes; } Stream;
typedef struct { int captured; double time; } Event;
typedef struct { char *begin; size_t size; int device, on_host; } Block;
typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; } Launch; /* CUlaunchConfig */
enum { MOST_DEVICES = 16, RELAXED = 2, SHARED = 232448 };
static const size_t TOTAL = 143ull * 1000 * 1000 * 1000, COPIED = 64ull << 20, CLEARED = 1 << 20, GRAIN = 2 << 20;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Stream *streams[1 << 16], legacy[MOST_DEVICES];
static Block blocks[1 << 17];
static int stream_count, block_count;
static size_t used[MOST_DEVICES];
static unsigned long long captures = 1;
static __thread int device, mode_of_thread;
static __thread Error last;
static __thread void *context = (void *)0x1000;
static __thread struct { dim3 grid, block; size_t shared; void *stream; } call;

static int setting(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
static Error failed(Error error, const char *what) { fprintf(stderr, "DRY-CUDA: %s\n", what); return last = error; }
static Stream *of(void *stream) { return (uintptr_t)stream <= 2 ? &legacy[device] : stream; }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }

/* The capture that this thread must respect: its own, or another thread's in global mode. */
static Stream *respected(void) {
    for (int i = 0; mode_of_thread != RELAXED && i < stream_count; i++) {
        Stream *s = streams[i];
        if (s->capturing && s->mode != RELAXED && (s->mode == 0 || pthread_equal(s->owner, pthread_self()))) return s;
    }
    return NULL;
}
static Error unless_capturing(const char *what) {
    Stream *s = respected();
    if (!s) return cudaSuccess;
    s->invalid = 1;
    fprintf(stderr, "DRY-CUDA: %s while a stream is captured\n", what);
    return last = cudaErrorStreamCaptureUnsupported;
}
static Error launched(void *stream) {
    Stream *s = of(stream);
    if (s->capturing) s->nodes++;
    else if (respected()) fprintf(stderr, "DRY-CUDA: a kernel goes to another stream while this thread captures\n");
    return cudaSuccess;
}

/* -- memory */
static Block *block_of(const void *p) {
    for (int i = block_count - 1; i >= 0; i--)
        if (blocks[i].begin && (char *)p >= blocks[i].begin && (char *)p < blocks[i].begin + blocks[i].size) return &blocks[i];
    return NULL;
}
static Error take(void **p, size_t size, int on_host) {
    Error error = unless_capturing(on_host ? "cudaHostAlloc" : "cudaMalloc");
    if (error) return error;
    size = (size + GRAIN - 1) / GRAIN * GRAIN;
    if (!on_host && used[device] + size > TOTAL) return failed(cudaErrorMemoryAllocation, "out of memory");
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < block_count && blocks[i].begin) i++;
    block_count += i == block_count;
    *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    blocks[i] = (Block){*p, size, device, on_host};
    used[device] += on_host ? 0 : size;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
static Error give(void *p) {
    if (!p) return cudaSuccess;
    Error error = unless_capturing("memory is given back");
    if (error) return error;
    pthread_mutex_lock(&lock);
    Block *b = block_of(p);
    if (b) { munmap(b->begin, b->size); used[b->device] -= b->on_host ? 0 : b->size; b->begin = NULL; }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
static Error copied(void *to, const void *from, size_t size, Stream *s) {
    pthread_mutex_lock(&lock);
    Block *a = block_of(to), *b = block_of(from);
    pthread_mutex_unlock(&lock);
    if (!s->capturing) { if (size <= COPIED) memmove(to, from, size); return cudaSuccess; }
    s->nodes++;
    if (a && b && !a->on_host && !b->on_host) return cudaSuccess;
    s->invalid = 1;
    return failed(cudaErrorStreamCaptureUnsupported, "a copy to or from the host is captured");
}
Error cudaMalloc(void **p, size_t size) { return take(p, size, 0); }
Error cudaHostAlloc(void **p, size_t size, unsigned flags) { return take(p, size, 1); }
Error cudaFree(void *p) { return give(p); }
Error cudaFreeHost(void *p) { return give(p); }
Error cudaMemGetInfo(size_t *free, size_t *total) { *total = TOTAL; *free = TOTAL - used[device]; return unless_capturing("cudaMemGetInfo"); }
Error cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    Error error = unless_capturing("cudaMemcpy");
    return error ? error : copied(to, from, size, &legacy[device]);
}
Error cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) { return copied(to, from, size, of(stream)); }
Error cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, void *stream) { return copied(to, from, size, of(stream)); }
Error cudaMemset(void *p, int value, size_t size) { if (size <= CLEARED) memset(p, value, size); return cudaSuccess; }
Error cudaMemsetAsync(void *p, int value, size_t size, void *stream) {
    if (of(stream)->capturing) { of(stream)->nodes++; return cudaSuccess; }
    return cudaMemset(p, value, size);
}
Error cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    Block *b = block_of(p);
    memset(a, 0, sizeof *a);
    a->type = !b ? cudaMemoryTypeUnregistered : b->on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    a->device = b ? b->device : -1;
    a->devicePointer = b ? (void *)p : NULL;
    a->hostPointer = b && b->on_host ? (void *)p : NULL;
    return cudaSuccess;
}
Error cudaGetSymbolAddress(void **p, const void *symbol) { static char zeros[4096]; *p = zeros; return cudaSuccess; }

/* -- devices */
Error cudaGetDeviceCount(int *count) { *count = setting("DRY_DEVICES", 1); return cudaSuccess; }
Error cudaGetDevice(int *number) { *number = device; return cudaSuccess; }
Error cudaSetDevice(int number) {
    if (number >= setting("DRY_DEVICES", 1)) return failed(cudaErrorInvalidDevice, "there is no such device");
    device = number;
    return cudaSuccess;
}
Error cudaDeviceSynchronize(void) { return unless_capturing("cudaDeviceSynchronize"); }
Error cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return cudaSuccess; }
Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
Error cudaDriverGetVersion(int *version) { *version = 13000; return cudaSuccess; }
Error cudaRuntimeGetVersion(int *version) { *version = 13000; return cudaSuccess; }
Error cudaGetDeviceProperties(struct cudaDeviceProp *p, int number) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "dry run");
    p->major = setting("DRY_SM", 90) / 10, p->minor = setting("DRY_SM", 90) % 10;
    p->totalGlobalMem = TOTAL, p->sharedMemPerBlock = 49152, p->sharedMemPerBlockOptin = SHARED, p->sharedMemPerMultiprocessor = SHARED + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->warpSize = 32, p->multiProcessorCount = 132, p->maxThreadsPerMultiProcessor = 2048;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = p->memPitch = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->l2CacheSize = 60 << 20, p->totalConstMem = 65536, p->unifiedAddressing = 1, p->textureAlignment = 512;
    return cudaSuccess;
}
Error cudaDeviceGetAttribute(int *value, int attribute, int number) {
    struct cudaDeviceProp p;
    cudaGetDeviceProperties(&p, number);
    switch (attribute) {
    case 1: *value = p.maxThreadsPerBlock; break;
    case 5: *value = p.maxGridSize[0]; break;
    case 6: case 7: *value = p.maxGridSize[1]; break;
    case 8: *value = p.sharedMemPerBlock; break;
    case 10: *value = p.warpSize; break;
    case 12: case 82: *value = p.regsPerBlock; break;
    case 16: *value = p.multiProcessorCount; break;
    case 39: *value = p.maxThreadsPerMultiProcessor; break;
    case 75: *value = p.major; break;
    case 76: *value = p.minor; break;
    case 81: *value = p.sharedMemPerMultiprocessor; break;
    case 97: *value = SHARED; break;
    default: *value = 1;
    }
    return cudaSuccess;
}
Error cudaGetLastError(void) { Error error = last; last = cudaSuccess; return error; }
Error cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorName(Error error) { return "an error of a dry run"; }
const char *cudaGetErrorString(Error error) {
    return error == cudaErrorStreamCaptureUnsupported ? "operation not permitted when stream is capturing"
        : error == cudaErrorStreamCaptureInvalidated ? "operation failed due to a previous error during capture"
        : error == cudaErrorMemoryAllocation ? "out of memory" : "an error of a dry run";
}

/* -- streams, events, graphs */
Error cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    Stream *s = *stream = calloc(1, sizeof *s);
    s->device = device;
    pthread_mutex_lock(&lock);
    streams[stream_count++] = s;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
Error cudaStreamSynchronize(void *stream) {
    if (!of(stream)->capturing) return unless_capturing("cudaStreamSynchronize");
    of(stream)->invalid = 1;
    return failed(cudaErrorStreamCaptureUnsupported, "the host waits for a stream that is captured");
}
Error cudaStreamQuery(void *stream) { return unless_capturing("cudaStreamQuery"); }
Error cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    if (((Event *)event)->captured != of(stream)->capturing) return failed(cudaErrorStreamCaptureIsolation, "a captured stream and one that is not wait for each other");
    return cudaSuccess;
}
Error cudaEventCreateWithFlags(void **event, unsigned flags) { *event = calloc(1, sizeof(Event)); return cudaSuccess; }
Error cudaEventDestroy(void *event) { free(event); return cudaSuccess; }
Error cudaEventRecord(void *event, void *stream) { *(Event *)event = (Event){of(stream)->capturing, now()}; return cudaSuccess; }
Error cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { return cudaEventRecord(event, stream); }
static Error asked(Event *event, const char *what) { return event->captured ? failed(cudaErrorCapturedEvent, what) : unless_capturing(what); }
Error cudaEventQuery(void *event) { return asked(event, "cudaEventQuery"); }
Error cudaEventSynchronize(void *event) { return asked(event, "cudaEventSynchronize"); }
Error cudaEventElapsedTime(float *ms, void *a, void *b) { *ms = 1e-3f + 1e3f * (((Event *)b)->time - ((Event *)a)->time); return cudaSuccess; }
Error cudaStreamBeginCapture(void *stream, int mode) {
    Stream *s = of(stream);
    if ((uintptr_t)stream <= 2) return failed(cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured");
    if (s->capturing || s->device != device) return failed(cudaErrorIllegalState, "a stream is captured already, or belongs to another device");
    s->capturing = 1, s->mode = mode, s->owner = pthread_self(), s->id = captures++, s->nodes = s->invalid = 0;
    return cudaSuccess;
}
Error cudaStreamEndCapture(void *stream, void **graph) {
    Stream *s = of(stream);
    s->capturing = 0, *graph = NULL;
    if (s->invalid) return failed(cudaErrorStreamCaptureInvalidated, "a capture ends that has become invalid");
    long *nodes = *graph = malloc(sizeof *nodes);
    *nodes = s->nodes;
    return cudaSuccess;
}
Error cudaStreamIsCapturing(void *stream, int *status) { *status = of(stream)->capturing; return cudaSuccess; }
Error cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph, void *d, void *e, size_t *count) {
    *status = of(stream)->capturing;
    if (id) *id = of(stream)->id;
    if (graph) *graph = NULL;
    if (count) *count = 0;
    return cudaSuccess;
}
Error cudaThreadExchangeStreamCaptureMode(int *mode) { int old = mode_of_thread; mode_of_thread = *mode; *mode = old; return cudaSuccess; }
Error cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) { *exec = calloc(1, 8); return cudaSuccess; }
Error cudaGraphLaunch(void *exec, void *stream) { return of(stream)->capturing ? failed(cudaErrorIllegalState, "a graph in a graph") : cudaSuccess; }
Error cudaGraphDestroy(void *graph) { free(graph); return cudaSuccess; }
Error cudaGraphExecDestroy(void *exec) { free(exec); return cudaSuccess; }
Error cudaGraphGetNodes(void *graph, void *nodes, size_t *count) { *count = *(long *)graph; return cudaSuccess; }

/* -- kernels of torch */
void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(void) {}
void __cudaRegisterVar(void) {}
Error __cudaGetKernel(void **kernel, const void *function) { *kernel = (void *)function; return cudaSuccess; }
Error __cudaLaunchKernel(void *k, dim3 grid, dim3 block, void **a, size_t shared, void *stream) { return launched(stream); }
Error cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) { return launched((void *)c->stream); }
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    call.grid = grid, call.block = block, call.shared = shared, call.stream = stream;
    return 0;
}
Error __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream) {
    *grid = call.grid, *block = call.block, *shared = call.shared, *stream = call.stream;
    return cudaSuccess;
}
Error cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024, a->numRegs = 32, a->ptxVersion = a->binaryVersion = 90;
    return cudaSuccess;
}
Error cudaFuncSetAttribute(const void *f, int attribute, int value) { return cudaSuccess; }
Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t shared, unsigned flags) { *n = 8; return cudaSuccess; }
Error cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags, int *result) {
    *f = dlsym(RTLD_DEFAULT, name);
    if (result) *result = *f ? 0 : 1;
    return cudaSuccess;
}

/* -- cuBLAS: a handle begins with its stream */
#define NOTHING(name) int name(void) { return 0; }
#define MADE(name) int name(void **made) { *made = calloc(1, 64); return 0; }
#define PRODUCT(name) int name(void **handle) { return launched(*handle); }
MADE(cublasCreate_v2) NOTHING(cublasDestroy_v2) NOTHING(cublasSetMathMode) NOTHING(cublasSetPointerMode_v2) NOTHING(cublasSetWorkspace_v2)
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }
int cublasSetStream_v2(void **handle, void *stream) { *handle = stream; return 0; }
PRODUCT(cublasGemmEx) PRODUCT(cublasGemmStridedBatchedEx) PRODUCT(cublasSgemm_v2) PRODUCT(cublasDgemm_v2) PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched) PRODUCT(cublasSgemv_v2) PRODUCT(cublasDgemv_v2) PRODUCT(cublasDotEx) PRODUCT(cublasSdot_v2)
MADE(cublasLtMatmulDescCreate) NOTHING(cublasLtMatmulDescDestroy) NOTHING(cublasLtMatmulDescSetAttribute) MADE(cublasLtMatrixLayoutCreate)
NOTHING(cublasLtMatrixLayoutDestroy) NOTHING(cublasLtMatrixLayoutSetAttribute) MADE(cublasLtMatmulPreferenceCreate)
NOTHING(cublasLtMatmulPreferenceDestroy) NOTHING(cublasLtMatmulPreferenceSetAttribute)
size_t cublasLtGetVersion(void) { return 130000; }
int cublasLtMatmulAlgoGetHeuristic(void *h, void *o, void *a, void *b, void *c, void *d, void *p, int wanted, void *found, int *count) { *count = 1; return 0; }
int cublasLtMatmul(void *h, void *o, void *x, void *a, void *al, void *b, void *bl, void *y, void *c, void *cl, void *d, void *dl, void *algorithm,
                   void *workspace, size_t size, void *stream) { return launched(stream); }

/* -- the driver, for Triton */
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { return cudaGetDeviceCount(count); }
int cuDeviceGet(int *number, int ordinal) { *number = ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int number) { return cudaDeviceGetAttribute(value, attribute, number); }
int cuCtxGetCurrent(void **current) { *current = context; return 0; }
int cuCtxSetCurrent(void *wanted) { context = wanted; return 0; }
int cuCtxGetLimit(size_t *value, int limit) { return *value = 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuCtxGetDevice(int *number) { *number = device; return 0; }
int cuDevicePrimaryCtxRetain(void **made, int number) { *made = (void *)(uintptr_t)(0x1000 + number); return 0; }
int cuDevicePrimaryCtxGetState(int number, unsigned *flags, int *active) { *flags = 0, *active = 1; return 0; }
int cuGetErrorString(int error, const char **text) { *text = cudaGetErrorString(error); return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)1; return unless_capturing("a module is loaded"); }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = strdup(name); return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { *value = attribute == 0 ? 1024 : attribute == 4 ? 64 : 0; return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void *function, int config) { return 0; }
int cuOccupancyMaxActiveClusters(int *count, void *function, void *config) { *count = 8; return 0; }
int cuPointerGetAttribute(void *data, int attribute, unsigned long long p) {
    if (!block_of((void *)p)) return 1;
    *(unsigned long long *)data = p;
    return 0;
}
int cuLaunchKernelEx(const Launch *c, void *function, void **arguments, void **extra) {
    if (c->grid[1] > 65535 || c->grid[2] > 65535 || c->shared > SHARED) return failed(cudaErrorInvalidValue, "a kernel's grid or shared memory is too large");
    if (of(c->stream)->device != device && (uintptr_t)c->stream > 2) return failed(cudaErrorInvalidValue, "a kernel goes to a stream of another device");
    return launched(c->stream);
}
