/* The time of a step by operation: seconds, achieved FLOP/s and GB/s, longest first, and the time
 * outside the program. */
#include <stdio.h>
#include <stdlib.h>

#include "train/profile.h"

bool profile_node(void *context, const Graph *graph, int node, double seconds) {
    Profile *profile = context;
    const Node *n = &graph->nodes[node];
    Cost cost = op_cost(graph, n);
    ProfileRow *row = &profile->rows[n->op];
    row->op = n->op;
    row->calls++;
    row->seconds += seconds;
    row->flops += cost.flops;
    row->bytes += cost.bytes;
    return true;
}

static int by_seconds(const void *a, const void *b) {
    const ProfileRow *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

void profile_print(const Profile *profile, double measured_flops, FILE *file) {
    ProfileRow rows[OP_COUNT];
    double inside = 0, steps = profile->steps ? profile->steps : 1;
    for (int i = 0; i < OP_COUNT; i++) {
        rows[i] = profile->rows[i];
        inside += rows[i].seconds;
    }
    qsort(rows, OP_COUNT, sizeof *rows, by_seconds);
    fprintf(file, "%-28s %9s %9s %7s %9s %7s %8s\n", "operation", "calls", "ms/step", "%step", "GFLOP/s", "%best", "GB/s");
    for (int i = 0; i < OP_COUNT && rows[i].calls; i++)
        fprintf(file, "%-28s %9.0f %9.3f %7.2f %9.1f %7.1f %8.1f\n", op_table[rows[i].op]->name, rows[i].calls / steps,
            1e3 * rows[i].seconds / steps, 100 * rows[i].seconds / profile->seconds, rows[i].flops / rows[i].seconds / 1e9,
            measured_flops > 0 ? 100 * rows[i].flops / rows[i].seconds / measured_flops : 0, rows[i].bytes / rows[i].seconds / 1e9);
    double rest = profile->seconds - inside - profile->optimizer;
    fprintf(
        file, "%-28s %9s %9.3f %7.2f\n", "optimizer", "", 1e3 * profile->optimizer / steps, 100 * profile->optimizer / profile->seconds);
    fprintf(file, "%-28s %9s %9.3f %7.2f\n", "data, zeroing, reporting", "", 1e3 * rest / steps, 100 * rest / profile->seconds);
    fprintf(file, "%-28s %9s %9.3f %7.2f\n", "step", "", 1e3 * profile->seconds / steps, 100.0);
}
