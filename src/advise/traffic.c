/* Counts collectives from the plans of a session: nodes by their operations' rules, buckets by the
 * ZeRO stage. Owns nothing. */
#include "advise/traffic.h"

#include <string.h>

#include "advise/cluster.h"
#include "graph/op.h"
#include "ops/attention/attention.h"

/* Returns the microbatches per step of the rank that has the most. */
static int64_t count_microbatches(const Session *session) {
    return session_step_rows(session) / (session->config->batch.sequences * session->config->data.length);
}

/* -- Buckets ------------------------------------------------------------------------------------------------------- */

static Traffic twice(Traffic traffic) {
    traffic.bytes *= 2;
    return traffic;
}

BucketTraffic traffic_of_bucket(const Layout *layout, const LayoutBucket *bucket, Precision precision) {
    const Mesh *mesh = layout->mesh;
    const MeshAxes replica = MESH(AXIS_REPLICA);
    double bytes = (double)(bucket->end - bucket->begin), weights = (double)precision_weight_offset(precision, bucket->end - bucket->begin);
    if (bucket->coded) weights = bytes / (double)bucket->element_bytes; /* FP8 bytes */
    double gradients = layout->reduces_in_bf16 && !bucket->vectors ? bytes / 2 : bytes;
    if (bucket->packed_bytes) weights = (double)bucket->packed_bytes;
    if (bucket->frozen && !bucket->sharded) return (BucketTraffic){0};
    if (bucket->frozen) return (BucketTraffic){.gather = cluster_gather(mesh, bucket->axes & ~replica, weights)};
    if (!bucket->sharded) return (BucketTraffic){.reduce = twice(cluster_gather(mesh, bucket->axes, gradients))};
    return (BucketTraffic){.reduce = cluster_gather(mesh, bucket->axes & ~replica, gradients),
        .replicas = twice(cluster_gather(mesh, bucket->axes & replica, gradients / bucket->size)),
        .gather = cluster_gather(mesh, bucket->axes & ~replica, weights)};
}

double traffic_reductions(const Layout *layout, double microbatches) { return layout->shard.local_gradients ? microbatches : 1; }

/* -- The table ----------------------------------------------------------------------------------------------------- */

/* `messages`: as of ring_messages, in one run. */
static void add_traffic(
    TrafficTable *table, const Mesh *mesh, const char *operation, const Traffic *traffic, double times, double messages) {
    MeshAxes axes = mesh_significant(mesh, traffic->axes);
    int at = 0;
    if (!axes || traffic->bytes <= 0) return;
    while (at < table->count && (table->rows[at].axes != axes || strcmp(table->rows[at].operation, operation))) at++;
    if (at == TRAFFIC_ROWS) return;
    if (at == table->count) table->rows[table->count++] = (TrafficRow){.operation = operation, .axes = axes};
    table->rows[at].count += times;
    table->rows[at].bytes += times * traffic->bytes;
    table->rows[at].messages += times * messages;
}

static void count_buckets(TrafficTable *table, const Session *session, double microbatches) {
    const Layout *layout = session->layout;
    double reduces = traffic_reductions(layout, microbatches), gathers = layout->stage >= 3 ? 0 : 1;
    for (int b = 0; b < layout->bucket_count; b++) {
        const LayoutBucket *bucket = &layout->buckets[b];
        BucketTraffic traffic = traffic_of_bucket(layout, bucket, session->config->precision);
        add_traffic(
            table, layout->mesh, bucket->sharded ? "reduce_scatter" : "all_reduce", &traffic.reduce, bucket->sharded ? reduces : 1, 0);
        add_traffic(table, layout->mesh, "all_reduce", &traffic.replicas, reduces, 0);
        add_traffic(table, layout->mesh, "all_gather", &traffic.gather, gathers, 0);
    }
    for (int i = 0; i < session->training.schedule->gathering_count; i++) {
        BucketTraffic traffic =
            traffic_of_bucket(layout, &layout->buckets[session->training.schedule->gatherings[i].bucket], session->config->precision);
        add_traffic(table, layout->mesh, "all_gather", &traffic.gather, microbatches, 0);
    }
}

/* Counts the transfers between stages of a pipeline: the output of every chunk, and the gradient of
 * its input. */
static void count_transfers(TrafficTable *table, const Session *session, double microbatches) {
    const Graph *graph = session->training.model.graph;
    for (int c = 0; c < session->training.model.chunk_count; c++) {
        const ModelChunk *chunk = &session->training.model.chunks[c];
        for (int i = 0; i < EDGE_TENSORS; i++) {
            const TensorId sent[] = {chunk->out[i], chunk->d_in[i]};
            for (int j = 0; j < 2; j++) {
                Traffic traffic = {.axes = MESH(AXIS_PP), .bytes = (double)graph_bytes(graph, sent[j]), .pairwise = true};
                add_traffic(table, graph->mesh, "exchange", &traffic, microbatches, 0);
            }
        }
    }
}

void traffic_count(TrafficTable *table, const Session *session) {
    const Graph *graph = session->training.model.graph;
    double microbatches = (double)count_microbatches(session);
    *table = (TrafficTable){0};
    for (int i = 0; i < graph->node_count; i++) {
        const Op *op = op_table[graph->nodes[i].op];
        if (!op->communicates) continue;
        Traffic traffic = op->traffic(graph, &graph->nodes[i]);
        add_traffic(table, graph->mesh, op->name, &traffic, microbatches, (double)ring_messages(graph, &graph->nodes[i]));
    }
    count_transfers(table, session, microbatches);
    count_buckets(table, session, microbatches);
}

void traffic_name_axes(const Mesh *mesh, MeshAxes axes, char *text, size_t size) {
    static const MeshAxes words[] = {MESH(AXIS_REPLICA) | MESH(AXIS_DP), MESH(AXIS_PP), MESH(AXIS_CP), MESH(AXIS_EP), AXES_TENSOR};
    static const MeshAxis names[] = {AXIS_DP, AXIS_PP, AXIS_CP, AXIS_EP, AXIS_TP};
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words && used < size; i++)
        if (mesh_significant(mesh, axes & words[i]))
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? "." : "", mesh_axis_name(names[i]));
}
