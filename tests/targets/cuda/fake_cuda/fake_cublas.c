/* A stand-in for cuBLAS: products of float32 matrices, as work of a stream of the stand-in for CUDA.

   The calls are those of gpuflow's gemm.py. What a stream was given is done by a function of
   the host, so that it can be captured. Source: NVIDIA, cuBLAS documentation: cublasGemmEx. */

#include <cuda_runtime_api.h>
#include <stdlib.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1, NOT_SUPPORTED = 15, FLOAT32 = 0 };

typedef struct { cudaStream_t stream; void *workspace; } Handle;
typedef struct {
    int rows, columns, depth, step_a, next_a, step_b, next_b, leading;
    const float *a, *b;
    float *c;
} Product;

void fake_enter(const char *call); /* of fake_cuda.c */

int cublasCreate_v2(Handle **found) {
    fake_enter(__func__);
    return *found = calloc(1, sizeof **found), SUCCESS;
}

int cublasSetStream_v2(Handle *handle, cudaStream_t stream) {
    handle->stream = stream, handle->workspace = NULL;
    return SUCCESS;
}

int cublasSetWorkspace_v2(Handle *handle, void *workspace, size_t count) {
    (void)count;
    return handle->workspace = workspace, SUCCESS;
}

int cublasSetMathMode(Handle *handle, int mode) { (void)handle, (void)mode; return SUCCESS; }

static void multiply(void *data) {
    const Product *one = data; /* it stays: a graph may run it again */
    for (int i = 0; i < one->rows; i++)
        for (int j = 0; j < one->columns; j++) {
            float sum = 0;
            for (int k = 0; k < one->depth; k++)
                sum += one->a[i * one->step_a + k * one->next_a] *
                       one->b[k * one->step_b + j * one->next_b];
            one->c[j * one->leading + i] = sum;
        }
}

int cublasGemmEx(Handle *handle, int ta, int tb, int m, int n, int k, const float *alpha,
                 const void *a, int a_kind, int lda, const void *b, int b_kind, int ldb,
                 const float *beta, void *c, int c_kind, int ldc, int compute, int algorithm) {
    (void)compute, (void)algorithm;
    fake_enter(__func__);
    if (!handle || !handle->workspace) return NOT_INITIALIZED;
    if (a_kind != FLOAT32 || b_kind != FLOAT32 || c_kind != FLOAT32) return NOT_SUPPORTED;
    if (*alpha != 1 || *beta != 0) return NOT_SUPPORTED;
    Product *made = malloc(sizeof *made);
    *made = (Product){m, n, k, ta ? lda : 1, ta ? 1 : lda, tb ? ldb : 1, tb ? 1 : ldb, ldc, a, b, c};
    return cudaLaunchHostFunc(handle->stream, multiply, made);
}

int cublasGemmStridedBatchedEx(void) { return NOT_SUPPORTED; }
