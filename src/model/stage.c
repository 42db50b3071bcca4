/* A pipeline stage: its layers, and the tensors that it receives and sends. These tensors stay in
 * the stash until the transfer has ended. Owns nothing. Called by builder.c and model.c. */
#include <assert.h>

#include "model/builder.h"
#include "ops/join/join.h"

static int stage_of(const Builder *b) { return b->graph->mesh->at[AXIS_PP]; }
static int stages_of(const Builder *b) { return b->graph->mesh->size[AXIS_PP]; }

bool builder_is_first_stage(const Builder *b) { return !b->cut || stage_of(b) == 0; }
bool builder_is_last_stage(const Builder *b) { return !b->cut || stage_of(b) == stages_of(b) - 1; }
int builder_chunks(const Builder *b) { return b->cut ? b->cut->chunks : 1; }

static int chunk_piece(const Builder *b, int chunk) { return chunk * stages_of(b) + stage_of(b); }
bool builder_is_last_piece(const Builder *b, int chunk) { return !b->cut || chunk_piece(b, chunk) == stages_of(b) * b->cut->chunks - 1; }
/* The last piece may have only the head, which reads nothing but the stream. */
static bool has_layers(const Builder *b, int piece) { return b->cut->begin[piece] < b->cut->begin[piece + 1]; }

/* Returns whether router loads pass from the layers before `piece` to a router in it or after it. */
static bool passes_loads(const Builder *b, int piece) {
    const ModelConfig *c = b->config;
    int64_t first = b->cut->begin[piece], before = model_expert_layers(c, first);
    return b->graph->training && c->auxiliary_scope == AUXILIARY_MODEL && c->auxiliary_loss > 0 && before &&
           before < model_expert_layers(c, c->layers);
}

/* Returns a received tensor, [rows, columns]. */
static TensorId received(Builder *b, int64_t rows, int64_t columns, const char *name) {
    TensorId tensor = graph_tensor(b->graph, ARENA_STASH, TYPE_WIDE, 2, (int64_t[]){rows, columns}, name);
    b->graph->tensors[tensor].keep = true;
    return tensor;
}

static void receive_piece(Builder *b, int piece, TensorId *in) {
    const ModelConfig *c = b->config;
    int64_t rows = graph_elements(b->graph, b->tokens) / (builder_shares_rows(b) ? mesh_size(b->graph->mesh, AXES_TENSOR) : 1);
    in[EDGE_STREAM] = received(b, rows, c->width, "received_stream");
    if (!has_layers(b, piece)) return;
    if (family_of(c)->chains_routers) in[EDGE_ROUTER_STATE] = received(b, rows, c->router_width, "received_router_state");
    if (passes_loads(b, piece)) in[EDGE_LOADS] = received(b, 2, c->experts + family_of(c)->skips_experts, "received_loads");
}

LayerRange builder_begin_chunk(Builder *b, int chunk, TensorId *stream) {
    if (!b->cut) return (LayerRange){0, (int)b->config->layers};
    int piece = chunk_piece(b, chunk);
    b->graph->part = chunk;
    if (piece > 0) {
        TensorId *in = b->chunks[chunk].in;
        receive_piece(b, piece, in);
        *stream = in[EDGE_STREAM];
        b->router_state = in[EDGE_ROUTER_STATE];
        b->loads = in[EDGE_LOADS];
    }
    return (LayerRange){b->cut->begin[piece], b->cut->begin[piece + 1]};
}

void builder_end_chunk(Builder *b, int chunk, TensorId stream) {
    if (builder_is_last_piece(b, chunk)) return;
    TensorId *out = b->chunks[chunk].out;
    out[EDGE_STREAM] = stream;
    int next = chunk_piece(b, chunk) + 1;
    if (has_layers(b, next)) out[EDGE_ROUTER_STATE] = b->router_state;
    if (passes_loads(b, next)) out[EDGE_LOADS] = b->loads;
    if (out[EDGE_LOADS] && out[EDGE_LOADS] == b->chunks[chunk].in[EDGE_LOADS]) /* a chunk without routers sends a copy */
        out[EDGE_LOADS] = op_join_rows(b->graph, &b->loads, 1, 1);
    for (int i = 0; i < EDGE_TENSORS; i++) {
        Tensor *tensor = &b->graph->tensors[out[i]];
        if (!out[i]) continue;
        tensor->arena = ARENA_STASH;
        tensor->keep = true;
    }
}

int stage_list_seeds(Graph *graph, ModelChunk *chunks, int count, Seed *seeds) {
    int seed_count = 0;
    for (int c = 0; c < count; c++)
        for (int i = 0; i < EDGE_TENSORS; i++) {
            TensorId out = chunks[c].out[i];
            if (!out) continue;
            Tensor like = *graph_get(graph, out);
            chunks[c].d_out[i] = graph_tensor(graph, ARENA_STASH, like.type, like.rank, like.shape, "received_gradient");
            seeds[seed_count++] = (Seed){out, chunks[c].d_out[i]};
        }
    return seed_count;
}

void stage_keep_gradients(Graph *graph, ModelChunk *chunks, int count) {
    for (int c = 0; c < count; c++)
        for (int i = 0; i < EDGE_TENSORS; i++) {
            if (!chunks[c].in[i]) continue;
            TensorId gradient = chunks[c].d_in[i] = graph_get(graph, chunks[c].in[i])->gradient;
            assert(gradient);
            graph->tensors[gradient].arena = ARENA_STASH;
            graph->tensors[gradient].keep = true;
        }
}
