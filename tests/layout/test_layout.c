/* Data parallelism: the layout by itself, and training with real ranks under mpirun (and over TCP), compared with
 * one process. */
#include "backend/backend.h"
#include "base/bf16.h"
#include "support/check.h"
#include "support/mentions.h"
#include "support/poison.h"
#include "support/ranks_run.h"

#include "layout/comm_schedule.h"
#include "model/model.h"
#include "session/session.h"

enum { LARGEST = 4 }; /* ranks */

/* -- The layout by itself ------------------------------------------------------------------------------------------ */

static const char *const optimizers[] = {"adamw", "muon"};

typedef struct Setting {
    Config config;
    OptionStrings strings;
} Setting;

/* Many layers of matrices of many sizes, in small buckets. */
static Setting setting_of(int family, int optimizer, int stage) {
    static const char *const common[] = {"model.width=64", "model.layers=6", "model.heads=4", "model.kv_heads=2", "model.ffn=96",
        "model.router_width=24", "model.vocabulary=128", "data.length=16", "batch.sequences=2", "batch.tokens=64", "layout.bucket_mb=0.05"};
    Setting setting = {0};
    Error error = {0};
    options_defaults(&config_table, &setting.config, &setting.strings);
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        assert_true(options_set(&config_table, &setting.config, &setting.strings, common[i], &error));
    setting.config.model.family = family == 0 ? FAMILY_zaya : FAMILY_llama;
    setting.config.model.experts = family == 0 ? 5 : 0;
    setting.config.optimizer.name = optimizer;
    setting.config.layout.zero = stage;
    if (!config_check(&setting.config, &error)) fail_msg("%s", error.message);
    return setting;
}

static Session plan_rank(const Setting *setting, int rank, int size) {
    Session session;
    Error error = {0};
    if (!session_plan_rank(&session, &setting->config, device_cpu(), rank, size, &error)) fail_msg("%s", error.message);
    return session;
}

static void drop(Setting *setting) { options_free_strings(&setting->strings); }

/* Calls `check` with the sessions of all ranks, for every family, optimizer, number of ranks and stage. */
static void for_all_layouts(void (*check)(const Session *ranks, int size)) {
    for (int family = 0; family < 2; family++)
        for (int optimizer = 0; optimizer < 2; optimizer++)
            for (int stage = 0; stage <= 3; stage++)
                for (int size = 1; size <= LARGEST; size++) {
                    Setting setting = setting_of(family, optimizer, stage);
                    Session ranks[LARGEST];
                    for (int r = 0; r < size; r++) ranks[r] = plan_rank(&setting, r, size);
                    check(ranks, size);
                    for (int r = 0; r < size; r++) session_free(&ranks[r]);
                    drop(&setting);
                }
}

/* Counts for every element of every parameter how many ranks hold it and how many are its primary. */
static void check_holders(const Session *ranks, int size) {
    const Graph *graph = ranks[0].training.model.graph;
    unsigned char *held = calloc((size_t)graph->parameter_bytes, 1), *primary = calloc((size_t)graph->parameter_bytes, 1);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < ranks[r].layout->shard.interval_count; i++) {
            const ShardInterval *interval = &ranks[r].layout->shard.intervals[i];
            const Parameter *p = &graph->parameters[interval->elements.parameter];
            int64_t begin = p->offset + interval->elements.first * p->element_bytes, bytes = interval->elements.count * p->element_bytes;
            assert_true(interval->offset + bytes <= ranks[r].layout->shard.bytes);
            for (int64_t k = begin; k < begin + bytes; k++) held[k]++, primary[k] += interval->holder == 0;
        }
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        bool everywhere = ranks[0].layout->stage == 0 || graph_get(graph, p->tensor)->arena == ARENA_MASTER;
        for (int64_t k = p->offset; k < p->offset + p->count * p->element_bytes; k++) {
            assert_int_equal(held[k], everywhere ? size : 1);
            assert_int_equal(primary[k], 1);
        }
    }
    free(held);
    free(primary);
}

static void every_element_is_held_by_one_rank_and_vectors_by_all(void **state) {
    (void)state;
    for_all_layouts(check_holders);
}

static void check_matrices(const Session *ranks, int size) {
    for (int r = 0; r < size; r++)
        for (int i = 0; i < ranks[r].layout->shard.interval_count; i++) {
            const ParameterInterval *elements = &ranks[r].layout->shard.intervals[i].elements;
            const Parameter *p = &ranks[r].training.model.graph->parameters[elements->parameter];
            if (!optimizer_takes_matrices(&ranks[r].config->optimizer, p)) continue;
            int64_t end = elements->first + elements->count, held = 0;
            for (int64_t k = 0; k < optimizer_matrices(p); k++) {
                MuonMatrix m = optimizer_matrix(ranks[r].mesh, p, k);
                bool inside = m.first >= elements->first && m.first + m.held <= end;
                assert_true(inside || m.first + m.held <= elements->first || m.first >= end);
                held += inside ? m.held : 0;
            }
            assert_int_equal(held, elements->count);
        }
}

static void muon_gets_whole_matrices(void **state) {
    (void)state;
    for_all_layouts(check_matrices);
}

static void muons_work_is_shared_out_evenly(void **state) {
    (void)state;
    Setting setting = setting_of(0, OPTIMIZER_muon, 1);
    Session session = plan_rank(&setting, 0, LARGEST);
    /* One matrix of the largest is a fortieth of all. */
    assert_true(session.layout->muon_balance >= 1 && session.layout->muon_balance < 1.15);
    session_free(&session);
    drop(&setting);
}

/* -- Updates by parts ---------------------------------------------------------------------------------------------- */

/* A rank's optimizer with its arenas; gradients and weights are of the whole model, as in stage 1. */
typedef struct Updater {
    Session session;
    Optimizer *optimizer;
    char *master, *weights, *gradients;
    int64_t master_bytes, whole_bytes;
} Updater;

static float value_of(int parameter, int64_t element) { return (float)((parameter * 7919 + element * 104729) % 2003 - 1001) / 1001; }

static Updater updater_make(const Setting *setting, int rank, int size, Device *device) {
    Updater u = {.session = plan_rank(setting, rank, size)};
    const Graph *graph = u.session.training.model.graph;
    const Layout *layout = u.session.layout;
    Error error = {0};
    u.optimizer = optimizer_create(graph, &setting->config.optimizer, &layout->shard, device, &error);
    assert_non_null(u.optimizer);
    u.master_bytes = layout->shard.bytes;
    u.whole_bytes = layout->bytes;
    u.master = device_allocate(device, u.master_bytes, &error);
    u.weights = device_allocate(device, u.whole_bytes, &error);
    u.gradients = device_allocate(device, u.whole_bytes, &error);
    device_fill(device, u.weights, 0, u.whole_bytes);
    char *values = calloc((size_t)layout->bytes, 1);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        void *at = parameter_in(p, values);
        for (int64_t k = 0; k < p->count; k++) {
            if (p->element_bytes == 2) ((uint16_t *)at)[k] = bf16_from_float(value_of(i, k));
            else ((float *)at)[k] = value_of(i, k);
        }
    }
    device_upload(device, u.gradients, values, u.whole_bytes);
    for (int i = 0; i < layout->shard.interval_count; i++) {
        const ShardInterval *interval = &layout->shard.intervals[i];
        const Parameter *p = &graph->parameters[interval->elements.parameter];
        const char *from = (char *)parameter_in(p, values) + interval->elements.first * p->element_bytes;
        device_upload(device, u.master + interval->offset, from, interval->elements.count * p->element_bytes);
    }
    free(values);
    return u;
}

static void updater_drop(Updater *u, Device *device) {
    optimizer_free(u->optimizer);
    device_free(device, u->master, u->master_bytes);
    device_free(device, u->weights, u->whole_bytes);
    device_free(device, u->gradients, u->whole_bytes);
    session_free(&u->session);
}

/* The rank's shards, weights of the compute type included, must be those of the one that makes the whole update. */
static void compare_updates(const Updater *part, const Updater *whole, Device *device) {
    Precision precision = part->session.config->precision;
    const OptimizerShard *shard = &part->session.layout->shard;
    for (int i = 0; i < shard->interval_count; i++) {
        const ShardInterval *interval = &shard->intervals[i];
        int index = interval->elements.parameter;
        const Parameter *p = &part->session.training.model.graph->parameters[index],
                        *q = &whole->session.training.model.graph->parameters[index];
        int64_t first = interval->elements.first * p->element_bytes, bytes = interval->elements.count * p->element_bytes;
        int64_t weight_bytes = precision_weight_offset(precision, bytes);
        char *a = malloc((size_t)bytes), *b = malloc((size_t)bytes);
        device_download(device, a, part->master + interval->offset, bytes);
        device_download(device, b, whole->master + q->offset + first, bytes);
        assert_memory_equal(a, b, (size_t)bytes);
        device_download(device, a, part->weights + precision_weight_offset(precision, p->offset + first), weight_bytes);
        device_download(device, b, whole->weights + precision_weight_offset(precision, q->offset + first), weight_bytes);
        assert_memory_equal(a, b, (size_t)weight_bytes);
        free(a);
        free(b);
    }
}

static void check_updates(Device *device, Precision precision, int optimizer) {
    Setting setting = setting_of(0, optimizer, 1);
    setting.config.model.layers = 2;
    setting.config.precision = (int)precision;
    Updater whole = updater_make(&setting, 0, 1, device);
    for (int step = 1; step <= 2; step++)
        optimizer_step(whole.optimizer, &(Update){whole.master, whole.weights, whole.gradients, step, 1e-2, 0.5});
    double expected = precise_value(optimizer_gradient_squares(whole.optimizer, whole.gradients));
    PreciseSum squares = {0};
    for (int rank = 0; rank < 3; rank++) {
        Updater part = updater_make(&setting, rank, 3, device);
        for (int step = 1; step <= 2; step++)
            optimizer_step(part.optimizer, &(Update){part.master, part.weights, part.gradients, step, 1e-2, 0.5});
        compare_updates(&part, &whole, device);
        precise_join(&squares, optimizer_gradient_squares(part.optimizer, part.gradients));
        updater_drop(&part, device);
    }
    if (device == device_cpu()) assert_true(precise_value(squares) == expected);
    else assert_true(fabs(precise_value(squares) - expected) < 1e-12 * expected); /* sums in double, in another order */
    updater_drop(&whole, device);
    drop(&setting);
}

static void the_updates_of_all_ranks_are_the_update_of_one(void **state) {
    (void)state;
    for (int optimizer = 0; optimizer < 2; optimizer++) {
        check_updates(device_cpu(), PRECISION_FP32, optimizer);
        check_updates(device_cpu(), PRECISION_BF16, optimizer);
        check_updates(device_cpu(), PRECISION_PURE_BF16, optimizer);
    }
}

static void the_updates_of_all_ranks_are_the_update_of_one_on_a_gpu(void **state) {
    (void)state;
    Device *gpu = check_gpu();
    for (int optimizer = 0; optimizer < 2; optimizer++) {
        check_updates(gpu, PRECISION_BF16, optimizer);
        check_updates(gpu, PRECISION_PURE_BF16, optimizer);
    }
}

/* -- Programs with stops ------------------------------------------------------------------------------------------- */

enum { RUNS = 4 }; /* on a GPU the second is recorded, later ones are replayed */

typedef struct Stops { int next, count, runs; } Stops;

static void at_stop(void *context, int index) {
    Stops *stops = context;
    assert_int_equal(index, stops->next);
    stops->next = (index + 1) % stops->count;
    stops->runs += stops->next == 0;
}

/* The sum of the losses of some runs, in pieces when `stops` is given. */
static double run_program(const Session *session, Stops *stops) {
    Error error = {0};
    Executor *executor = executor_create(session->training.model.graph, &session->training.plan, &session->training.backend, NULL, &error);
    if (!executor) fail_msg("%s", error.message);
    const Model *model = &session->training.model;
    assert_true(model_initialize(model->graph, &session->config->model, 1, session->device, executor_arena(executor, ARENA_MASTER),
        executor_arena(executor, ARENA_WEIGHT), &error));
    if (stops)
        executor_set_comm_points(executor, session->training.schedule->points, session->training.schedule->point_count, at_stop, stops);
    executor_set_scalar(executor, model->scale, 1.0 / 64);
    executor_set_scalar(executor, model->share, 1);
    executor_zero(executor);
    for (int run = 0; run < RUNS; run++) {
        for (int64_t i = 0; i < model->sequences * model->length; i++) {
            ((int32_t *)executor_tensor(executor, model->tokens))[i] = (int32_t)((i * 37 + run) % 128);
            ((int32_t *)executor_tensor(executor, model->targets))[i] = (int32_t)((i * 11 + run) % 128);
            ((int32_t *)executor_tensor(executor, model->positions))[i] = (int32_t)(i % model->length);
        }
        executor_run(executor);
    }
    if (!executor_finish(executor, &error)) fail_msg("%s", error.message);
    double loss = executor_get_metric(executor, model->loss, 0);
    executor_free(executor);
    return loss;
}

static void check_stops(Device *device) {
    Setting setting = setting_of(1, OPTIMIZER_adamw, 0);
    Session session;
    Error error = {0};
    setting.config.model.layers = 1;
    assert_true(session_plan(&session, &setting.config, device, &error));
    Stops stops = {.count = session.training.schedule->point_count};
    double whole = run_program(&session, NULL), pieces = run_program(&session, &stops);
    assert_true(stops.count > 2 && stops.runs == RUNS);
    assert_true(whole > 0 && whole == pieces);
    session_free(&session);
    drop(&setting);
}

static void a_program_that_stops_on_its_way_computes_the_same(void **state) {
    (void)state;
    check_stops(device_cpu());
}

static void a_program_that_stops_on_its_way_computes_the_same_on_a_gpu(void **state) {
    (void)state;
    Device *gpu = check_gpu();
    check_stops(gpu);
}

/* -- Slots and memory ---------------------------------------------------------------------------------------------- */

static bool meet(NodeSpan a, NodeSpan b) { return !span_is_empty(a) && !span_is_empty(b) && a.first <= b.last && b.first <= a.last; }

/* What the program uses of two buckets at the same time must not lie in the same place. */
static void check_slots(const Session *ranks, int size) {
    (void)size;
    const Layout *layout = ranks[0].layout;
    const CommSchedule *schedule = ranks[0].training.schedule;
    Precision precision = ranks[0].config->precision;
    for (int a = 0; a < layout->bucket_count; a++)
        for (int b = 0; b < a; b++) {
            const BucketTimes *x = &schedule->buckets[a], *y = &schedule->buckets[b];
            int64_t x_bytes = layout->buckets[a].end - layout->buckets[a].begin,
                    y_bytes = layout->buckets[b].end - layout->buckets[b].begin;
            int64_t x_weights = precision_weight_offset(precision, x_bytes), y_weights = precision_weight_offset(precision, y_bytes);
            if (meet(x->writes, y->writes)) assert_true(x->gradients + x_bytes <= y->gradients || y->gradients + y_bytes <= x->gradients);
            for (int i = 0; i < BUCKET_PASSES * BUCKET_PASSES; i++)
                if (meet(x->reads[i / BUCKET_PASSES], y->reads[i % BUCKET_PASSES]))
                    assert_true(x->weights + x_weights <= y->weights || y->weights + y_weights <= x->weights);
        }
}

static void buckets_in_use_at_the_same_time_do_not_overlap(void **state) {
    (void)state;
    for_all_layouts(check_slots);
}

static void every_stage_takes_less_memory_of_a_rank_than_the_one_before(void **state) {
    (void)state;
    Budget budgets[4];
    for (int stage = 0; stage <= 3; stage++) {
        Setting setting = setting_of(1, OPTIMIZER_adamw, stage);
        Session session = plan_rank(&setting, 0, LARGEST);
        budgets[stage] = session_budget(&session);
        session_free(&session);
        drop(&setting);
    }
    assert_true(budgets[1].optimizer < 0.3 * budgets[0].optimizer && budgets[1].master < 0.3 * budgets[0].master);
    assert_true(
        budgets[2].gradients < 0.6 * budgets[1].gradients); /* a quarter, and slots for the few buckets that are being written or reduced */
    assert_true(budgets[3].weights < 0.6 * budgets[2].weights);
}

static void a_plan_that_does_not_fit_is_refused_with_a_higher_stage(void **state) {
    (void)state;
    Setting setting = setting_of(1, OPTIMIZER_adamw, 2);
    setting.config.checkpoint.async = false;
    Session session = plan_rank(&setting, 1, LARGEST);
    int64_t available = session_budget(&session).total;
    Error error = {0};
    session_free(&session);
    setting.config.layout.zero = 0;
    session = plan_rank(&setting, 1, LARGEST);
    assert_false(session_check_memory(&session, available, &error));
    assert_int_equal(error.code, ERROR_MEMORY);
    assert_mentions(error.message, "layout.zero=2");
    session_free(&session);
    drop(&setting);
}

/* -- Training with ranks ------------------------------------------------------------------------------------------- */

#define SIX_MICROBATCHES "batch.sequences=2 batch.tokens=384"

static void check_all_layouts(int family, int optimizer) {
    if (!has_mpi()) skip();
    const char *model = family == 0 ? "model.family=zaya model.auxiliary_loss=0.01" : "model.family=llama model.experts=0";
    train_ranks(0, "%s optimizer.name=%s " SIX_MICROBATCHES " run=one", model, optimizers[optimizer]);
    for (int ranks = 1; ranks <= LARGEST; ranks++)
        for (int stage = 0; stage <= 3; stage++) {
            char run[32];
            if (ranks == 1 && stage != 3) continue; /* with one rank all stages are one */
            snprintf(run, sizeof run, "r%d-z%d", ranks, stage);
            train_ranks(ranks, "%s optimizer.name=%s " SIX_MICROBATCHES " layout.zero=%d run=%s", model, optimizers[optimizer], stage, run);
            assert_same_losses(run, "one");
        }
}

static void zaya_with_adamw_learns_the_same_on_any_ranks_in_any_stage(void **state) {
    (void)state;
    check_all_layouts(0, OPTIMIZER_adamw);
}

static void zaya_with_muon_learns_the_same_on_any_ranks_in_any_stage(void **state) {
    (void)state;
    check_all_layouts(0, OPTIMIZER_muon);
}

static void llama_with_adamw_learns_the_same_on_any_ranks_in_any_stage(void **state) {
    (void)state;
    check_all_layouts(1, OPTIMIZER_adamw);
}

static void llama_with_muon_learns_the_same_on_any_ranks_in_any_stage(void **state) {
    (void)state;
    check_all_layouts(1, OPTIMIZER_muon);
}

static void groups_that_hold_copies_learn_the_same(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    train_ranks(0, SIX_MICROBATCHES " optimizer.name=muon run=one");
    for (int stage = 1; stage <= 3; stage++) {
        char run[32];
        snprintf(run, sizeof run, "four-%d", stage);
        train_ranks(4, SIX_MICROBATCHES " optimizer.name=muon layout.shard=2 layout.zero=%d run=%s", stage, run);
        assert_same_losses(run, "one");
    }
}

/* Of the loss of every step, in nats. */
static double largest_difference(const char *run, const char *other) {
    double largest = 0;
    for (int i = 0; i < 20; i++) largest = fmax(largest, fabs(recorded(run, "step", i, "loss") - recorded(other, "step", i, "loss")));
    return largest;
}

/* A gradient's rounding to bf16, 2^-9 of it, turns AdamW's steps of 1e-3 by about as much: thousandths of a nat that
 * is learned. */
/* Matrices of 40 x 33: the second rank's shard begins within the aligned bytes that end the first one's, in a bucket that
 * is gathered for the backward pass while the forward pass reads it. Whether a wrong byte is seen is a matter of
 * timing, hence several runs. */
static void shards_of_odd_sizes_are_gathered_as_they_are(void **state) {
    (void)state;
    enum { RUNS = 6 };
    static const char odd[] = "model.layers=1 model.width=40 model.ffn=33 optimizer.name=muon precision=bf16 layout.bucket_mb=0";
    train_ranks(2, "%s layout.zero=2 run=apart", odd);
    for (int i = 0; i < RUNS; i++) {
        train_ranks(2, "%s layout.zero=3 run=gathered-%d", odd, i);
        char run[32];
        snprintf(run, sizeof run, "gathered-%d", i);
        assert_same_steps("apart", run);
    }
}

static void gradients_that_travel_in_bf16_teach_nearly_the_same(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const struct {
        int ranks, stage;
        const char *more;
    } layouts[] = {{3, 0, ""}, {3, 1, ""}, {3, 3, ""}, {4, 2, "layout.shard=2"}};
    train_ranks(0, SIX_MICROBATCHES " run=one");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char run[32];
        snprintf(run, sizeof run, "many-%zu", i);
        train_ranks(
            layouts[i].ranks, SIX_MICROBATCHES " layout.reduce=bf16 layout.zero=%d %s run=%s", layouts[i].stage, layouts[i].more, run);
        double off = largest_difference(run, "one");
        if (!(off > 0 && off < 5e-3)) fail_msg("the losses of stage %d differ by %.3g", layouts[i].stage, off);
    }
    train_ranks(3, SIX_MICROBATCHES " layout.reduce=bf16 layout.zero=3 run=again");
    assert_same_steps("again", "many-2");
}

/* The noise of the rounding does not depend on who holds an element: stages that sum gradients alike differ by the
 * norm's last bits alone, the others by their sums in bf16. */
static void pure_bf16_learns_the_same_on_any_ranks_in_any_stage(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    train_ranks(0, SIX_MICROBATCHES " precision=pure_bf16 optimizer.name=muon run=one");
    for (int stage = 0; stage <= 3; stage++) {
        char run[32];
        snprintf(run, sizeof run, "pure-%d", stage);
        train_ranks(3, SIX_MICROBATCHES " precision=pure_bf16 optimizer.name=muon layout.zero=%d run=%s", stage, run);
        double off = largest_difference(run, "one");
        if (!(off < 0.02)) fail_msg("the losses of stage %d differ by %.3g", stage, off);
    }
    assert_true(largest_difference("pure-0", "pure-1") < 1e-3);
    assert_true(largest_difference("pure-2", "pure-3") < 1e-3);
}

static void ranks_without_a_microbatch_add_nothing(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    train_ranks(0, "batch.tokens=128 optimizer.name=muon model.auxiliary_loss=0.01 run=one");
    for (int stage = 0; stage <= 3; stage += 3) {
        char run[32];
        snprintf(run, sizeof run, "three-%d", stage);
        train_ranks(3, "batch.tokens=128 optimizer.name=muon model.auxiliary_loss=0.01 layout.zero=%d run=%s", stage, run);
        assert_same_losses(run, "one");
    }
}

static void a_growing_batch_is_the_same_on_any_ranks(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    train_ranks(0, SIX_MICROBATCHES " batch.ramp_tokens=64 batch.ramp_steps=12 run=one");
    train_ranks(3, SIX_MICROBATCHES " batch.ramp_tokens=64 batch.ramp_steps=12 run=three");
    assert_same_losses("three", "one");
}

static void a_run_goes_on_with_other_numbers_of_ranks_and_in_other_stages(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const struct {
        int ranks, stage, stop;
        const char *more;
    } parts[] = {{4, 1, 5, ""}, {3, 3, 9, ""}, {0, 0, 13, ""}, {2, 2, 16, ""}, {4, 2, 18, "layout.shard=2"}, {4, 0, 20, ""}};
    for (int optimizer = 0; optimizer < 2; optimizer++) {
        char one[32], many[32];
        snprintf(one, sizeof one, "one-%s", optimizers[optimizer]);
        snprintf(many, sizeof many, "many-%s", optimizers[optimizer]);
        train_ranks(0, "optimizer.name=%s " SIX_MICROBATCHES " run=%s", optimizers[optimizer], one);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            train_ranks(parts[i].ranks, "optimizer.name=%s " SIX_MICROBATCHES " layout.zero=%d stop_at=%d run=%s %s", optimizers[optimizer],
                parts[i].stage, parts[i].stop, many, parts[i].more);
        assert_same_losses(many, one);
    }
}

static void the_same_layout_continued_has_the_bits_of_an_unbroken_run(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    for (int stage = 1; stage <= 3; stage += 2) {
        char whole[32], broken[32];
        snprintf(whole, sizeof whole, "whole-%d", stage);
        snprintf(broken, sizeof broken, "broken-%d", stage);
        train_ranks(3, "optimizer.name=muon layout.zero=%d run=%s", stage, whole);
        train_ranks(3, "optimizer.name=muon layout.zero=%d stop_at=7 run=%s", stage, broken);
        train_ranks(3, "optimizer.name=muon layout.zero=%d run=%s", stage, broken);
        assert_same_steps(whole, broken);
    }
}

static void a_layout_for_other_ranks_than_there_are_is_refused(void **state) {
    (void)state;
    train_says(ERROR_USAGE, "layout.dp=4 = 1: layout.dp=1", "layout.dp=4 run=r");
    /* The nearest layout of all would be for ranks that are not there. */
    static const char *const settings[] = {"layout.tp=3", "layout.ep=3", "layout.pp=3"};
    static const char *const advice[] = {"set layout.tp=1", "set layout.ep=1", "set layout.pp=1"};
    for (int i = 0; i < 3; i++) {
        SCOPED_FREE char *command = memory_format("launch -n 3 self_test=false -- train " TINY " " RANKS_SETTINGS " run=s %s", settings[i]);
        ProcessResult result = smelt(command);
        assert_int_equal(result.code, ERROR_USAGE);
        if (!mentions(result.errors, advice[i])) fail_msg("no '%s' in: %s", advice[i], result.errors);
        process_free(&result);
    }
}

static void a_signal_to_one_rank_stops_all_after_the_same_step(void **state) {
    (void)state;
    int port = process_free_port();
    Process ranks[2];
    ProcessResult results[2];
    for (int r = 0; r < 2; r++) ranks[r] = rank_start(r, port, RANKS_SETTINGS " steps=1000000 layout.zero=2 run=r");
    process_await_steps(&ranks[0], 19);
    kill(ranks[1].id, SIGTERM);
    for (int r = 0; r < 2; r++) {
        results[r] = process_finish(&ranks[r]);
        expect_code(&results[r], ERROR_PREEMPTED, "after SIGTERM");
        assert_mentions(results[r].errors, "SIGTERM after step");
    }
    int64_t step = (int64_t)recorded("r", "step", -1, "step");
    char stopped[64];
    snprintf(stopped, sizeof stopped, "SIGTERM after step %lld:", (long long)step);
    for (int r = 0; r < 2; r++) {
        assert_mentions(results[r].errors, stopped);
        process_free(&results[r]);
    }
    assert_true(has_checkpoint("r", step));
}

/* Makes the embedding of a byte infinite in an exported model. */
static void spoil_byte(const char *path, unsigned char byte) {
    static const char name[] = "model.embed_tokens.weight";
    Error error = {0};
    Safetensors file;
    if (!safetensors_open(&file, path, &error)) fail_msg("%s", error.message);
    const StoredTensor *table = safetensors_find(&file, name);
    int64_t row = table->shape[1] * (int64_t)stored_type_bytes(table->type);
    size_t at = (size_t)((const char *)table->data - (const char *)file.map.bytes) + (size_t)(byte * row), length;
    bool narrow = table->type == STORED_BF16;
    safetensors_close(&file);
    unsigned char *bytes = read_bytes(path, &length);
    for (int64_t i = 0; i < row; i += narrow ? 2 : 4) {
        float infinity = INFINITY;
        memcpy(bytes + at + i, (char *)&infinity + (narrow ? 2 : 0), narrow ? 2 : 4);
    }
    write_bytes(path, bytes, length);
    free(bytes);
}

static void copy_base(const char *run) {
    char *command = memory_format("cp -r base %s", run);
    assert_int_equal(system(command), 0);
    free(command);
}

static void a_skipped_update_leaves_nothing_behind_in_any_stage(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const char settings[] = "model.family=llama model.experts=0 model.tied=false batch.sequences=1 batch.tokens=128 on_nan=skip";
    size_t length;
    unsigned char *text = read_bytes("text", &length);
    for (size_t i = 700; i < length; i += 500) text[i] = '@';
    write_bytes("text", text, length);
    free(text);
    train_good(RANKS_SETTINGS " %s run=base stop_at=2", settings);
    poison("base", 2, "model.embed_tokens.weight", '@' * 32, INFINITY); /* a step is not finite where its text has the byte */
    copy_base("one");
    train_says(ERROR_NUMERICS, "20 model.embed_tokens.weight", RANKS_SETTINGS " %s run=one", settings); /* it was infinite */
    json_auto_t *steps = records("one", "step");
    size_t skipped = 0;
    for (size_t i = 0; i < json_array_size(steps); i++) skipped += json_is_true(json_object_get(json_array_get(steps, i), "skipped"));
    assert_true(skipped > 0 && skipped < json_array_size(steps));
    for (int stage = 0; stage <= 3; stage++) {
        char run[32];
        snprintf(run, sizeof run, "four-%d", stage);
        copy_base(run);
        char *words = memory_format("%s layout.zero=%d run=%s", settings, stage, run);
        ProcessResult result = run_ranks(4, words);
        process_free(&result);
        free(words);
        json_auto_t *others = records(run, "step");
        for (size_t i = 0; i < json_array_size(steps); i++)
            assert_true(
                json_equal(json_object_get(json_array_get(steps, i), "skipped"), json_object_get(json_array_get(others, i), "skipped")));
    }
}

/* Ranks that hold none of the tensor end with the same code. */
static void a_broken_model_folder_is_refused_in_any_stage(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const char message[] = "init=model: tensor model.embed_tokens.weight contains 32 NaN or infinite values",
                      llama[] = "model.family=llama model.experts=0 model.router_width=64";
    train_good("%s precision=fp32 run=base stop_at=2", llama);
    smelt_good("convert base model");
    spoil_byte("model/model.safetensors", '@');
    train_says(ERROR_NUMERICS, message, "%s init=model run=one", llama);
    train_says(ERROR_NUMERICS, message, "%s init=model run=one lora.rank=2", llama);
    for (int stage = 0; stage <= 3; stage++) {
        char *words = memory_format("%s init=model run=two layout.zero=%d", llama, stage);
        ProcessResult result = run_ranks(2, words);
        expect_code(&result, ERROR_NUMERICS, words);
        assert_mentions(result.errors, "init=model: tensor model.embed_tokens.weight contains ");
        process_free(&result);
        free(words);
    }
}

static void a_nan_on_one_rank_is_named_on_all(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    ProcessResult result =
        run_ranks(2, "schedule.kind=constant schedule.warmup=0 optimizer.lr=100 optimizer.weight_decay=100 steps=200 layout.zero=3 run=r");
    assert_int_equal(result.code, ERROR_NUMERICS);
    assert_mentions(result.errors, "infinity");
    process_free(&result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_held_by_one_rank_and_vectors_by_all),
        cmocka_unit_test(muon_gets_whole_matrices),
        cmocka_unit_test(muons_work_is_shared_out_evenly),
        EACH_ISA(cmocka_unit_test(the_updates_of_all_ranks_are_the_update_of_one)),
        cmocka_unit_test(the_updates_of_all_ranks_are_the_update_of_one_on_a_gpu),
        cmocka_unit_test(a_program_that_stops_on_its_way_computes_the_same),
        cmocka_unit_test(a_program_that_stops_on_its_way_computes_the_same_on_a_gpu),
        cmocka_unit_test(buckets_in_use_at_the_same_time_do_not_overlap),
        cmocka_unit_test(every_stage_takes_less_memory_of_a_rank_than_the_one_before),
        cmocka_unit_test(a_plan_that_does_not_fit_is_refused_with_a_higher_stage),
        TRAIN_TEST(zaya_with_adamw_learns_the_same_on_any_ranks_in_any_stage),
        TRAIN_TEST(zaya_with_muon_learns_the_same_on_any_ranks_in_any_stage),
        TRAIN_TEST(llama_with_adamw_learns_the_same_on_any_ranks_in_any_stage),
        TRAIN_TEST(llama_with_muon_learns_the_same_on_any_ranks_in_any_stage),
        TRAIN_TEST(groups_that_hold_copies_learn_the_same),
        TRAIN_TEST(shards_of_odd_sizes_are_gathered_as_they_are),
        TRAIN_TEST(gradients_that_travel_in_bf16_teach_nearly_the_same),
        TRAIN_TEST(pure_bf16_learns_the_same_on_any_ranks_in_any_stage),
        TRAIN_TEST(ranks_without_a_microbatch_add_nothing),
        TRAIN_TEST(a_growing_batch_is_the_same_on_any_ranks),
        TRAIN_TEST(a_run_goes_on_with_other_numbers_of_ranks_and_in_other_stages),
        TRAIN_TEST(the_same_layout_continued_has_the_bits_of_an_unbroken_run),
        TRAIN_TEST(a_layout_for_other_ranks_than_there_are_is_refused),
        TRAIN_TEST(a_signal_to_one_rank_stops_all_after_the_same_step),
        TRAIN_TEST(a_skipped_update_leaves_nothing_behind_in_any_stage),
        TRAIN_TEST(a_broken_model_folder_is_refused_in_any_stage),
        TRAIN_TEST(a_nan_on_one_rank_is_named_on_all),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
