/* Schedules of pipelines by themselves: order, slots, transfers, bubbles, and stages by cost. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "layout/pipeline_schedule.h"

enum { MOST_PIECES = 32, MOST_MICROBATCHES = 40 };

static bool runs(PipelineKind kind, PartKind part) {
    return part == PART_FORWARD || (kind != PIPELINE_FORWARD && (part == PART_BACKWARD || kind == PIPELINE_ZERO_BUBBLE));
}

/* Equal costs, as in the formulas: forward 1, backward 2 of which half are gradients of weights. */
static PipelineSchedule *schedule_of(PipelineShape shape, double spread) {
    PieceCost costs[MOST_PIECES];
    bool splits = shape.kind == PIPELINE_ZERO_BUBBLE;
    for (int p = 0; p < pipeline_pieces(&shape); p++) {
        double scale = 1 + spread * ((p * 7 + 3) % 5);
        costs[p] = (PieceCost){{scale, splits ? scale : 2 * scale, splits ? scale : 0}};
    }
    return pipeline_schedule_create(&shape, costs, PIPELINE_ALL_STAGES);
}

/* Calls `check` with schedules of every kind and many shapes, of equal and of unequal costs. */
static void for_all_schedules(void (*check)(const PipelineSchedule *schedule)) {
    static const int microbatches[] = {1, 2, 3, 4, 7, 8, 17};
    for (PipelineKind kind = PIPELINE_1F1B; kind <= PIPELINE_FORWARD; kind++)
        for (int stages = 1; stages <= 8; stages += stages < 4 ? 1 : 4)
            for (int chunks = 1; chunks <= (kind == PIPELINE_INTERLEAVED || kind == PIPELINE_FORWARD ? 3 : 1); chunks++)
                for (size_t m = 0; m < sizeof microbatches / sizeof *microbatches; m++)
                    for (int spread = 0; spread < 3; spread++) {
                        PipelineSchedule *schedule = schedule_of((PipelineShape){kind, stages, chunks, microbatches[m]}, 0.37 * spread);
                        check(schedule);
                        pipeline_schedule_free(schedule);
                    }
}

/* -- Order --------------------------------------------------------------------------------------------------------- */

/* Every part of every microbatch runs once on each chunk, forward before backward before weights, and its last run is
 * marked; weights of a chunk are complete last, and chunks in the order of the program. */
static void check_order(const PipelineSchedule *schedule) {
    const PipelineShape *shape = &schedule->shape;
    for (int stage = 0; stage < shape->stages; stage++) {
        bool ran[MOST_PIECES][MOST_MICROBATCHES][PART_KINDS] = {0}, ended[MOST_PIECES][PART_KINDS] = {0};
        int count = 0;
        for (int i = 0; i < schedule->stages[stage].count; i++) {
            const PipelineAction *a = &schedule->stages[stage].actions[i];
            if (a->act != PIPELINE_RUN) continue;
            assert_true(runs(shape->kind, a->part) && a->chunk < shape->chunks && a->microbatch < shape->microbatches);
            assert_false(ran[a->chunk][a->microbatch][a->part]);
            assert_false(ended[a->chunk][a->part]);
            for (int part = 0; part < (int)a->part; part++) assert_true(ran[a->chunk][a->microbatch][part]);
            for (int part = 0; a->last && part < (int)a->part; part++) assert_true(ended[a->chunk][part]);
            for (int c = a->chunk + 1; a->last && a->part == PART_BACKWARD && c < shape->chunks; c++) assert_true(ended[c][PART_BACKWARD]);
            ran[a->chunk][a->microbatch][a->part] = true;
            ended[a->chunk][a->part] = a->last;
            count++;
        }
        int parts = shape->kind == PIPELINE_FORWARD ? 1 : shape->kind == PIPELINE_ZERO_BUBBLE ? 3 : 2;
        assert_int_equal(count, parts * shape->chunks * shape->microbatches);
    }
}

static void every_microbatch_goes_forward_and_back_through_every_chunk(void **state) {
    (void)state;
    for_all_schedules(check_order);
}

/* -- Slots --------------------------------------------------------------------------------------------------------- */

/* A slot belongs to one microbatch of one chunk from its first action to its last run; the next one runs in it only after
 * all that was made in it was sent. */
static void check_slots(const PipelineSchedule *schedule) {
    const PipelineShape *shape = &schedule->shape;
    for (int stage = 0; stage < shape->stages; stage++) {
        int64_t holder[MOST_PIECES * MOST_MICROBATCHES] = {0};
        int unsent[MOST_PIECES * MOST_MICROBATCHES] = {0};
        for (int i = 0; i < schedule->stages[stage].count; i++) {
            const PipelineAction *a = &schedule->stages[stage].actions[i];
            int64_t mine = 1 + (int64_t)a->chunk * MOST_MICROBATCHES + a->microbatch;
            int piece = a->chunk * shape->stages + stage;
            assert_in_range(a->slot, 0, schedule->stages[stage].slots - 1);
            if (a->act == PIPELINE_SEND) {
                unsent[a->slot]--;
                continue;
            }
            assert_true(holder[a->slot] == mine || holder[a->slot] == 0);
            holder[a->slot] = mine;
            if (a->act != PIPELINE_RUN) continue;
            if (a->part == PART_FORWARD) assert_int_equal(unsent[a->slot], 0);
            unsent[a->slot] += a->part == PART_FORWARD ? piece + 1 < pipeline_pieces(shape) : a->part == PART_BACKWARD && piece > 0;
            if (!runs(shape->kind, a->part + 1) || a->part == PART_WEIGHTS) holder[a->slot] = 0;
        }
        for (int s = 0; s < schedule->stages[stage].slots; s++) assert_true(holder[s] == 0 && unsent[s] == 0);
    }
}

static void no_slot_is_taken_while_its_microbatch_needs_it(void **state) {
    (void)state;
    for_all_schedules(check_slots);
}

static void one_f_one_b_keeps_as_many_microbatches_as_stages_behind(void **state) {
    (void)state;
    PipelineSchedule *schedule = schedule_of((PipelineShape){PIPELINE_1F1B, 4, 1, 16}, 0.37);
    for (int stage = 0; stage < 4; stage++) assert_int_equal(schedule->stages[stage].slots, 4 - stage);
    pipeline_schedule_free(schedule);
    schedule = schedule_of((PipelineShape){PIPELINE_ZERO_BUBBLE, 4, 1, 16}, 0);
    for (int stage = 0; stage < 4; stage++) assert_int_equal(schedule->stages[stage].slots, 4);
    pipeline_schedule_free(schedule);
}

/* -- Transfers ----------------------------------------------------------------------------------------------------- */

/* A stage as it runs: it stops before a run whose input has not come; its transfers go one after the other, each when both
 * ends have come to it, as those of a process on the CPU. */
typedef struct Runner {
    const PipelineStage *stage;
    int at, issued; /* actions done and transfers issued, of `queue` those before `head` have ended */
    int queue[4 * MOST_PIECES * MOST_MICROBATCHES], head;
} Runner;

static bool has_come(const Runner *r, const PipelineAction *run) {
    for (int i = r->head; i < r->issued; i++) {
        const PipelineAction *a = &r->stage->actions[r->queue[i]];
        if (a->act == PIPELINE_RECEIVE && a->part == run->part && a->chunk == run->chunk && a->microbatch == run->microbatch) return false;
    }
    return true;
}

static bool step(Runner *r) {
    if (r->at == r->stage->count) return false;
    const PipelineAction *a = &r->stage->actions[r->at];
    if (a->act == PIPELINE_RUN && !has_come(r, a)) return false;
    if (a->act != PIPELINE_RUN) r->queue[r->issued++] = r->at;
    r->at++;
    return true;
}

/* Ends the transfer at the heads of two queues, where these are its two ends. */
static bool transfer(const PipelineShape *shape, Runner *runners, int stage) {
    Runner *r = &runners[stage];
    if (r->head == r->issued) return false;
    const PipelineAction *a = &r->stage->actions[r->queue[r->head]];
    Runner *other = &runners[a->peer];
    if (other == r || other->head == other->issued) return false;
    const PipelineAction *b = &other->stage->actions[other->queue[other->head]];
    if (b->peer != stage) return false;
    int step = (a->part == PART_FORWARD) == (a->act == PIPELINE_SEND) ? 1 : -1;
    assert_true(a->part == b->part && a->microbatch == b->microbatch && a->act != b->act);
    assert_int_equal(a->chunk * shape->stages + stage + step, b->chunk * shape->stages + a->peer);
    r->head++;
    other->head++;
    return true;
}

static void check_transfers(const PipelineSchedule *schedule) {
    static Runner runners[8];
    uint64_t draw = 88172645463325252u;
    if (schedule->shape.stages == 1) return;
    for (int stage = 0; stage < schedule->shape.stages; stage++) {
        runners[stage].stage = &schedule->stages[stage];
        runners[stage].at = runners[stage].issued = runners[stage].head = 0;
    }
    for (int idle = 0; idle < 1000;) { /* stages go on in any order: real times are not the simulated ones */
        draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17;
        int stage = (int)(draw % schedule->shape.stages);
        bool moved = draw & 1u << 20 ? step(&runners[stage]) : transfer(&schedule->shape, runners, stage);
        idle = moved ? 0 : idle + 1;
    }
    for (int stage = 0; stage < schedule->shape.stages; stage++)
        assert_true(runners[stage].at == runners[stage].stage->count && runners[stage].head == runners[stage].issued);
}

static void transfers_match_on_both_ends_and_never_block_each_other(void **state) {
    (void)state;
    for_all_schedules(check_transfers);
}

/* -- Bubbles ------------------------------------------------------------------------------------------------------- */

static void the_bubble_of_equal_costs_is_the_formulas(void **state) {
    (void)state;
    static const struct {
        PipelineShape shape;
        double bubble;
    } cases[] = {
        {{PIPELINE_1F1B, 2, 1, 8}, 3},
        {{PIPELINE_1F1B, 4, 1, 8}, 9},
        {{PIPELINE_1F1B, 4, 1, 2}, 9}, /* (P - 1) (F + B) */
        {{PIPELINE_INTERLEAVED, 4, 2, 8}, 9},
        {{PIPELINE_INTERLEAVED, 4, 3, 16}, 9}, /* of chunks, which are as long as the stages above */
        {{PIPELINE_ZERO_BUBBLE, 4, 1, 8}, 3},
        {{PIPELINE_ZERO_BUBBLE, 8, 1, 32}, 7}, /* (P - 1) (F + B - 2W) */
        {{PIPELINE_FORWARD, 4, 2, 8}, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PipelineSchedule *schedule = schedule_of(cases[i].shape, 0);
        assert_true(fabs(schedule->bubble - cases[i].bubble) < 1e-9 && fabs(schedule->formula - cases[i].bubble) < 1e-9);
        pipeline_schedule_free(schedule);
    }
}

/* -- Stages by cost ------------------------------------------------------------------------------------------------ */

static void cut(LayerCosts costs, int stages, int pieces, int *begin) { pipeline_cut_layers(&costs, stages, pieces, begin); }

static void chunks_of_a_stage_make_up_for_each_other(void **state) {
    (void)state;
    const double layers[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    int begin[9], of_stage[2] = {0, 4}; /* the head is worth four layers */
    cut((LayerCosts){layers, 16, 0, 4}, 2, 8, begin);
    for (int p = 0; p < 8; p++) of_stage[p % 2] += begin[p + 1] - begin[p];
    assert_int_equal(begin[8], 16);
    assert_true(of_stage[0] == 10 && of_stage[1] == 10);
}

static void the_head_takes_the_place_of_layers(void **state) {
    (void)state;
    const double layers[8] = {1, 1, 1, 1, 1, 1, 1, 1}, uneven[4] = {1, 5, 1, 1};
    int begin[9];
    cut((LayerCosts){layers, 8, 0, 2}, 2, 2, begin);
    assert_true(begin[0] == 0 && begin[1] == 5 && begin[2] == 8);
    cut((LayerCosts){layers, 8, 1, 3}, 4, 4, begin);
    assert_true(begin[1] == 2 && begin[3] == 8 && begin[4] == 8); /* the head alone takes as long as three layers */
    cut((LayerCosts){layers, 8, 0, 100}, 8, 8, begin);            /* every other piece has a layer */
    for (int p = 0; p < 7; p++) assert_true(begin[p] < begin[p + 1]);
    assert_int_equal(begin[7], 8);
    cut((LayerCosts){layers, 8, 0, 9}, 1, 1, begin);
    assert_true(begin[0] == 0 && begin[1] == 8);
    cut((LayerCosts){uneven, 4, 0, 0}, 2, 2, begin);
    assert_int_equal(begin[1], 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_microbatch_goes_forward_and_back_through_every_chunk),
        cmocka_unit_test(no_slot_is_taken_while_its_microbatch_needs_it),
        cmocka_unit_test(one_f_one_b_keeps_as_many_microbatches_as_stages_behind),
        cmocka_unit_test(transfers_match_on_both_ends_and_never_block_each_other),
        cmocka_unit_test(the_bubble_of_equal_costs_is_the_formulas),
        cmocka_unit_test(the_head_takes_the_place_of_layers),
        cmocka_unit_test(chunks_of_a_stage_make_up_for_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
