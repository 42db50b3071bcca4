/* The calls of an engine that leads others. Rank 0 collects them between two steps, then sends them to
 * the ranks that follow. All ranks run the same build on the same kind of processor, so requests travel as
 * they are in memory. */
#pragma once

#include "comm/comm.h"
#include "engine/engine.h"

typedef enum EngineCallKind { ENGINE_CALL_SUBMIT, ENGINE_CALL_CANCEL, ENGINE_CALL_END } EngineCallKind;

typedef struct EngineCall {
    EngineCallKind kind;
    int sample;                     /* ENGINE_CALL_END: the sample that EngineRequest.token has ended */
    const void *context;            /* of the request; a follower compares it and never reads what it points at */
    const EngineRequest *submitted; /* ENGINE_CALL_SUBMIT: its arrays follow it in the memory of the call */
} EngineCall;

/* Calls as bytes. Zero-initialize. */
typedef struct EngineCalls {
    char *bytes;
    size_t size, capacity;
    size_t at; /* bytes that engine_calls_next has read */
} EngineCalls;
void engine_calls_free(EngineCalls *calls);

void engine_calls_submit(EngineCalls *calls, const EngineRequest *request);
void engine_calls_cancel(EngineCalls *calls, const void *context);
void engine_calls_end(EngineCalls *calls, const void *context, int sample);

/* Sends the calls to all ranks of `comm` and forgets them; `over`: no step follows. Collective with
 * engine_calls_receive. ERROR_COMMUNICATION. */
bool engine_calls_send(EngineCalls *calls, Comm *comm, bool over, Error *error);
/* Replaces the calls with those that rank 0 sent. */
bool engine_calls_receive(EngineCalls *calls, Comm *comm, bool *over, Error *error);
/* Reads the next call; false after the last one. *memory: the request with its arrays, for the caller
 * to free when the request has ended; NULL: none. The request has no functions. */
bool engine_calls_next(EngineCalls *calls, EngineCall *call, void **memory);
