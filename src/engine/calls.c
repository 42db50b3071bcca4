/* A call is a head, and for a request the EngineRequest, its prompt, its end tokens and its biases.
 * A message is its size, then the calls if there are any. */
#include "engine/calls_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

/* The start of a call in the bytes. */
typedef struct CallHead {
    EngineCallKind kind;
    int sample;
    const void *context;
    size_t bytes; /* after the head */
} CallHead;

void engine_calls_free(EngineCalls *calls) { free(calls->bytes); }

static void append_call_bytes(EngineCalls *calls, const void *bytes, size_t size) {
    array_reserve(calls->bytes, calls->capacity, calls->size + size);
    if (size) memcpy(calls->bytes + calls->size, bytes, size);
    calls->size += size;
}

static size_t prompt_bytes(const EngineRequest *r) { return (size_t)r->prompt_count * sizeof *r->prompt; }
static size_t end_bytes(const EngineRequest *r) { return (size_t)r->end_count * sizeof *r->ends; }
static size_t bias_bytes(const EngineRequest *r) { return (size_t)r->penalties.bias_count * sizeof *r->penalties.biases; }

/* The biases come first, because they need more alignment than the tokens. */
void engine_calls_submit(EngineCalls *calls, const EngineRequest *request) {
    const size_t bytes = sizeof *request + bias_bytes(request) + prompt_bytes(request) + end_bytes(request);
    append_call_bytes(calls, &(CallHead){ENGINE_CALL_SUBMIT, 0, request->context, bytes}, sizeof(CallHead));
    append_call_bytes(calls, request, sizeof *request);
    append_call_bytes(calls, request->penalties.biases, bias_bytes(request));
    append_call_bytes(calls, request->prompt, prompt_bytes(request));
    append_call_bytes(calls, request->ends, end_bytes(request));
}

void engine_calls_cancel(EngineCalls *calls, const void *context) {
    append_call_bytes(calls, &(CallHead){ENGINE_CALL_CANCEL, 0, context, 0}, sizeof(CallHead));
}

void engine_calls_end(EngineCalls *calls, const void *context, int sample) {
    append_call_bytes(calls, &(CallHead){ENGINE_CALL_END, sample, context, 0}, sizeof(CallHead));
}

/* -- Messages ------------------------------------------------------------------------------------------------------ */

bool engine_calls_send(EngineCalls *calls, Comm *comm, bool over, Error *error) {
    int64_t head[] = {(int64_t)calls->size, over};
    bool sent = comm_host_broadcast(comm, "size of the engine's calls", head, 2, COMM_I64, 0, error) &&
                (!calls->size || comm_host_broadcast(comm, "the engine's calls", calls->bytes, head[0], COMM_U8, 0, error));
    calls->size = 0;
    return sent;
}

bool engine_calls_receive(EngineCalls *calls, Comm *comm, bool *over, Error *error) {
    int64_t head[2];
    if (!comm_host_broadcast(comm, "size of the engine's calls", head, 2, COMM_I64, 0, error)) return false;
    calls->size = (size_t)head[0];
    calls->at = 0;
    *over = head[1];
    array_reserve(calls->bytes, calls->capacity, calls->size);
    return !calls->size || comm_host_broadcast(comm, "the engine's calls", calls->bytes, head[0], COMM_U8, 0, error);
}

/* Copies a request and points it at its arrays in the copy, which the caller frees. */
static EngineRequest *copy_request(const char *bytes, size_t size) {
    char *memory = memory_allocate(size);
    memcpy(memory, bytes, size);
    EngineRequest *r = (EngineRequest *)memory;
    r->penalties.biases = (const EngineBias *)(memory + sizeof *r);
    r->prompt = (const int32_t *)(memory + sizeof *r + bias_bytes(r));
    r->ends = r->prompt + r->prompt_count;
    assert(size == sizeof *r + bias_bytes(r) + prompt_bytes(r) + end_bytes(r));
    r->token = NULL, r->end = NULL, r->wait = NULL;
    return r;
}

bool engine_calls_next(EngineCalls *calls, EngineCall *call, void **memory) {
    CallHead head;
    *memory = NULL;
    if (calls->at == calls->size) return false;
    memcpy(&head, calls->bytes + calls->at, sizeof head);
    calls->at += sizeof head;
    if (head.kind == ENGINE_CALL_SUBMIT) *memory = copy_request(calls->bytes + calls->at, head.bytes);
    calls->at += head.bytes;
    *call = (EngineCall){head.kind, head.sample, head.context, *memory};
    return true;
}
