/* Streams that capture: launches, copies, fills and functions of the host are recorded in order and replayed as often as
 * asked. Addresses and arguments are those of the recording. */
#ifndef ROCEMU_GRAPH_H
#define ROCEMU_GRAPH_H

#include "emulator.h"

typedef struct Stream Stream;
typedef struct Graph Graph;

Stream *stream_create(void);
void stream_destroy(Stream *stream);
/* The null stream, as NULL, never captures. */
bool stream_captures(const Stream *stream);

/* These return HIP error codes. */
int graph_begin(Stream *stream);
int graph_end(Stream *stream, Graph **graph);
int graph_record_copy(Stream *stream, void *to, const void *from, size_t bytes);
int graph_record_fill(Stream *stream, void *memory, uint32_t value, size_t count, unsigned width);
/* Takes launch->kernarg over. */
int graph_record_launch(Stream *stream, const Launch *launch);
int graph_record_host(Stream *stream, void (*run)(void *), void *data);
int graph_run(Graph *graph);

void graph_fill(void *memory, uint32_t value, size_t count, unsigned width);
/* A graph lives until everyone who retained it, and the one who ended its capture, has released it. */
Graph *graph_retain(Graph *graph);
void graph_release(Graph *graph);

#endif
