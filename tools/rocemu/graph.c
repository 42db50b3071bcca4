/* Capture and replay; see graph.h. A graph owns its list of operations and the argument segments of its launches. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "hip.h"

typedef enum NodeKind { NODE_COPY, NODE_FILL, NODE_LAUNCH, NODE_HOST } NodeKind;
typedef struct Node {
    NodeKind kind;
    union {
        struct {
            void *to;
            const void *from;
            size_t bytes;
        } copy;
        struct {
            void *memory;
            uint32_t value;
            size_t count;
            unsigned width;
        } fill;
        Launch launch;
        struct {
            void (*run)(void *);
            void *data;
        } host;
    };
} Node;
struct Graph {
    Node *node;
    size_t count, capacity;
    int owners;
};
struct Stream { Graph *capture; };

Stream *stream_create(void) { return calloc(1, sizeof(Stream)); }
void stream_destroy(Stream *stream) {
    if (stream) graph_release(stream->capture);
    free(stream);
}
bool stream_captures(const Stream *stream) { return stream && stream->capture; }

int graph_begin(Stream *stream) {
    if (!stream || stream->capture) return HIP_ERROR_CAPTURE_UNSUPPORTED;
    stream->capture = calloc(1, sizeof *stream->capture);
    if (!stream->capture) return HIP_ERROR_OUT_OF_MEMORY;
    stream->capture->owners = 1;
    return 0;
}

int graph_end(Stream *stream, Graph **graph) {
    if (!stream || !stream->capture || !graph) return HIP_ERROR_CAPTURE_UNMATCHED;
    *graph = stream->capture;
    stream->capture = NULL;
    return 0;
}

static int append(Graph *graph, Node node) {
    if (graph->count == graph->capacity) {
        size_t capacity = graph->capacity ? 2 * graph->capacity : 64;
        Node *larger = realloc(graph->node, capacity * sizeof *larger);
        if (!larger) return HIP_ERROR_OUT_OF_MEMORY;
        graph->node = larger;
        graph->capacity = capacity;
    }
    graph->node[graph->count++] = node;
    return 0;
}

int graph_record_copy(Stream *stream, void *to, const void *from, size_t bytes) {
    return append(stream->capture, (Node){NODE_COPY, .copy = {to, from, bytes}});
}
int graph_record_fill(Stream *stream, void *memory, uint32_t value, size_t count, unsigned width) {
    return append(stream->capture, (Node){NODE_FILL, .fill = {memory, value, count, width}});
}
int graph_record_launch(Stream *stream, const Launch *launch) {
    int error = append(stream->capture, (Node){NODE_LAUNCH, .launch = *launch});
    if (error) free(launch->kernarg);
    return error;
}
int graph_record_host(Stream *stream, void (*run)(void *), void *data) {
    return append(stream->capture, (Node){NODE_HOST, .host = {run, data}});
}

void graph_fill(void *memory, uint32_t value, size_t count, unsigned width) {
    for (size_t i = 0; width > 1 && i < count; i++) memcpy((uint8_t *)memory + i * width, &value, width);
    if (width == 1) memset(memory, (int)value, count);
}

int graph_run(Graph *graph) {
    int error = 0;
    for (size_t i = 0; i < graph->count && !error; i++) {
        Node *node = &graph->node[i];
        switch (node->kind) {
        case NODE_COPY: memmove(node->copy.to, node->copy.from, node->copy.bytes); break;
        case NODE_FILL: graph_fill(node->fill.memory, node->fill.value, node->fill.count, node->fill.width); break;
        case NODE_HOST: node->host.run(node->host.data); break;
        case NODE_LAUNCH: {
            Launch launch = node->launch;
            error = launch_run(&launch);
            break;
        }
        }
    }
    return error;
}

Graph *graph_retain(Graph *graph) {
    __atomic_fetch_add(&graph->owners, 1, __ATOMIC_RELAXED);
    return graph;
}
void graph_release(Graph *graph) {
    if (!graph || __atomic_sub_fetch(&graph->owners, 1, __ATOMIC_ACQ_REL)) return;
    for (size_t i = 0; i < graph->count; i++)
        if (graph->node[i].kind == NODE_LAUNCH) free(graph->node[i].launch.kernarg);
    free(graph->node);
    free(graph);
}
