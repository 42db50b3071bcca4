/* Starts and ends a training: the settings and data that all ranks must agree on, the run folder
 * and its lock, the checkpoint to continue from, the first lines and records. Rank 0 creates all
 * files; the other ranks then open them. Called by the training loop. */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/version.h"
#include "ckpt/ckpt.h"
#include "config/needs.h"
#include "data/remote.h"
#include "device/gemm.h"
#include "eval/evaluate.h"
#include "eval/picture_sample.h"
#include "eval/text_sample.h"
#include "formats/hf.h"
#include "formats/hf_class.h"
#include "formats/peft.h"
#include "run/identity.h"
#include "run/run.h"
#include "run/source.h"
#include "session/adapter.h"
#include "session/fit.h"
#include "session/weights.h"
#include "train/loop_internal.h"
#include "train/numerics_internal.h"
#include "train/summary_internal.h"

/* -- The machine --------------------------------------------------------------------------------------------------- */

/* Returns the FLOP/s of the best of a few large GEMMs in the run's precision: the machine's
 * measured peak. Takes about 50 ms. */
static double measure_gemm(const Config *config, Device *device) {
    enum { TRIES = 5 };
    GemmType type = precision_is_bf16(config->precision) ? GEMM_BF16 : config->precision == PRECISION_FP32 ? GEMM_F32 : GEMM_F64;
    int64_t size = device_info(device)->massively_parallel ? 8192 : 768,
            bytes = size * size * (int64_t)precision_bytes(config->precision, TYPE_COMPUTE);
    if (type == GEMM_F64 || device_info(device)->emulated) return 0; /* both are for checks, not for speed */
    Error ignored = {0};
    char *memory = device_allocate(device, 3 * bytes, &ignored);
    if (!memory) return 0;
    Gemm gemm = {.transpose_b = true, .input = type, .output = type, .a = memory, .b = memory + bytes, .c = memory + 2 * bytes};
    gemm.m = gemm.n = gemm.k = gemm.lda = gemm.ldb = gemm.ldc = size;
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        device_timer_start(device);
        device_gemm(device, &gemm);
        double rate = 2.0 * size * size * size / device_timer_stop(device);
        if (rate > best) best = rate;
    }
    device_free(device, memory, 3 * bytes);
    return best;
}

static bool report_start(Loop *loop, Error *error) {
    const DeviceInfo *device = device_info(loop->session.device);
    SCOPED_FREE char *machine = run_describe_machine();
    json_auto_t *details = json_pack("{s:I, s:I, s:s, s:i, s:s, s:s}", "parameters", (json_int_t)loop->session.size.parameters,
        "active_parameters", (json_int_t)loop->session.size.active, "machine", machine, "threads", omp_get_max_threads(), "precision",
        precision_name(loop->config->precision), "device", device->host_memory ? "cpu" : device->name);
    return metrics_start(loop->metrics, loop->session.step, details, error);
}

/* -- First weights ------------------------------------------------------------------------------------------------- */

/* Fills shards from a model folder's weights, holding one parameter at a time in memory. */
static bool take_model_folder(Session *session, const char *folder, const Config *origin, Error *error) {
    SCOPED(model_free) Model whole = model_describe(&session->config->model, NULL, session->config->precision);
    HfReader *reader = hf_reader_open(folder, &origin->model, whole.graph, error);
    if (reader) weights_take_shards(session, &(WeightSource){.reader = reader, .graph = whole.graph});
    bool taken = reader && device_ok(session->device, error);
    hf_reader_close(reader);
    return taken;
}

/* Returns whether this rank fills its programs' weights shard by shard: it holds parts of weights, or a value head, which
 * no source contains. */
static bool has_shards(const Session *session) {
    const Config *config = session->config;
    return !config->lora.rank && (session->layout->stage || !graph_is_whole(session->training.model.graph) || config->model.policy.values);
}

static bool load_first_weights(Session *session, const char *folder, const Config *origin, Error *error) {
    if (session->config->lora.rank) return adapter_load_base(session, folder, origin, error);
    if (!has_shards(session)) return weights_load_program(folder, origin, session->training.executor, error);
    if (source_is_model_folder(folder)) return take_model_folder(session, folder, origin, error);
    SCOPED(host_model_close) HostModel whole = {0};
    if (!host_model_open(&whole, &session->config->model, NULL, session->config->precision, error) ||
        !weights_load(folder, origin, whole.model.graph, whole.master, NULL, error))
        return false;
    weights_take_shards(session, &(WeightSource){.graph = whole.model.graph, .master = whole.master});
    return device_ok(session->device, error);
}

/* Returns whether a new run begins with existing adapters. */
static bool has_start(const Session *session) { return session->config->lora.start[0] && !session->step; }

/* Loads the weights of init=FOLDER into a run without steps, and frozen weights into any run with
 * adapters; then the adapters that a run begins with. */
static bool load_initial(Loop *loop, Error *error) {
    const char *folder = loop->config->init;
    Config origin;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    if (!folder[0] || (loop->session.step && !loop->config->lora.rank)) return true;
    Session *session = &loop->session;
    bool loaded = source_read_config(folder, &origin, &strings, error) && load_first_weights(session, folder, &origin, error);
    if (!loaded) error_context(error, "init=%s", folder);
    if (loaded && has_start(session) && !adapter_load_start(session, error))
        loaded = error_context(error, "lora.start=%s", session->config->lora.start);
    if (loaded && !numerics_check_parameters(session, error)) loaded = error_context(error, "init=%s", folder);
    if (!loop_agree(loop, "initial weights", loaded, error)) return false;
    if (has_shards(session) || (session->config->lora.rank && !session->step)) session_spread_weights(session);
    if (!comm_ok(loop->comm, error)) return false;
    if (loop_leads(loop))
        log_info("starting from the weights of %s%s%s", folder, has_start(session) ? " and the adapters of " : "",
            has_start(session) ? session->config->lora.start : "");
    return true;
}

/* -- Settings, run folder, data ------------------------------------------------------------------------------------ */

/* Returns the memory that a process uses besides the plan: the GEMM scratch of each thread, the
 * loader, graphs, records, and the writing of checkpoints. Measured with 1 to 8 threads
 * (tests/train/test_memory.c). */
static int64_t process_bytes(void) {
    enum { PROCESS_MIB = 24, THREAD_MIB = 4 };
    return (int64_t)(PROCESS_MIB + THREAD_MIB * omp_get_max_threads()) << 20;
}

int64_t train_memory(const Comm *comm, const Device *device) {
    int64_t available = device_available(device);
    if (available < 0 || !device_info(device)->host_memory) return available;
    return int_max(0, available / comm_local_size(comm) - process_bytes());
}

static bool check_settings(const Config *config, int ranks, Error *error) {
    if (config->lora.rank && !config->init[0])
        return error_set(error, ERROR_USAGE, "lora.rank=%lld needs a base model: set init=FOLDER", (long long)config->lora.rank);
    if (config->lora.rank && config->dump[0])
        return error_set(error, ERROR_USAGE,
            "dump=%s writes all weights and gradients, but lora.rank trains only adapters: remove one of the two", config->dump);
    if (config->routing_trace[0] && config->layout.pp > 1)
        return error_set(error, ERROR_USAGE,
            "routing_trace=%s with layout.pp=%lld: one rank records all layers, but a stage has only its own: set layout.pp=1",
            config->routing_trace, (long long)config->layout.pp);
    if (config->routing_trace[0] && config->profile)
        return error_set(error, ERROR_USAGE,
            "routing_trace=%s with profile=%lld: both watch every operation of a step: remove one of the two", config->routing_trace,
            (long long)config->profile);
    return ranks == 1 || !config->dump[0] ||
           error_set(error, ERROR_USAGE, "dump=%s needs one process, but there are %d: start only one", config->dump, ranks);
}

/* Checks that all ranks use the same data. Rank 0 knows the origin, and compares the run with its
 * newest checkpoint. */
static bool identify(Loop *loop, Error *error) {
    const Origin *origin = &loop->origin;
    const bool whole = loop_leads(loop) || comm_local_rank(loop->comm) == 0;
    loop->identity = identity_create(&loop->settings, &loop->phases, &loop->corpus, origin->number, origin->step > 0, whole, error);
    loop->changes = json_array();
    if (!loop_agree(loop, "identity", loop->identity, error)) return false;
    json_auto_t *content = identity_content(loop->identity);
    return loop_agree(loop, "data", identity_agree(loop->comm, "data", content, error), error) &&
           (!loop_leads(loop) || lineage_compare(&loop->settings, &loop->phases, origin, loop->identity, loop->changes, error));
}

static bool take_store(Loop *loop, const char *number, Error *error) {
    const Config *config = &loop->settings;
    loop->lease = config->profile ? NULL : lease_take(run_checkpoints(config->run, config), number, config->run, error);
    return loop->lease || config->profile;
}

/* Tests writing, because a node may see the store without being able to write to it. */
static bool probe_store(const Loop *loop, Error *error) {
    const Config *config = &loop->settings;
    const int rank = comm_rank(loop->comm);
    char host[256] = "";
    if (checkpoint_probe(run_checkpoints(config->run, config), rank, error)) return true;
    gethostname(host, sizeof host - 1);
    return error_context(error, "rank %d on %s cannot save checkpoints", rank, host);
}

/* Checks that all ranks save into one store. */
static bool see_store(Loop *loop, Error *error) {
    const double limit = 20; /* seconds */
    const Config *config = &loop->settings;
    char holder[LEASE_HOLDER_BYTES] = "";
    if (config->profile) return true;
    if (loop_leads(loop)) snprintf(holder, sizeof holder, "%s", lease_holder(loop->lease));
    return comm_host_broadcast(loop->comm, "store", holder, sizeof holder, COMM_U8, 0, error) &&
           (loop_leads(loop) || lease_await(run_checkpoints(config->run, config), holder, limit, error)) && probe_store(loop, error);
}

/* Checks that the disk of the store can hold one more checkpoint, and warns if it cannot hold all that the run keeps,
 * because a new one is written before an old one is removed. Buckets do not tell their room. */
static bool check_disk(Loop *loop, Error *error) {
    const Config *config = &loop->settings;
    const char *where = run_checkpoints(config->run, config);
    if (config->profile || loop->session.step >= config->steps) return true;
    loop->save_bytes = session_save_bytes(&loop->session);
    if (!comm_host_all_reduce(loop->comm, "checkpoint bytes", &loop->save_bytes, 1, COMM_I64, COMM_SUM, error)) return false;
    double room = file_scheme(where) ? -1 : file_free_bytes(where), each = (double)loop->save_bytes;
    if (!loop_leads(loop) || room < 0) return true;
    SCOPED_FREE int64_t *steps = NULL;
    size_t count = 0;
    if (!checkpoint_list(where, &steps, &count, error)) return false;
    double wanted = each * fmax(1, (double)(config->checkpoint.keep + 1) - (double)count);
    char left[32], one[32], all[32];
    log_format_bytes(room, left);
    log_format_bytes(each, one);
    log_format_bytes(wanted, all);
    if (room < each)
        return error_set(error, ERROR_CHECKPOINT,
            "the disk of %s has %s free, and a checkpoint needs %s: free space, or set checkpoint.store to another disk", where, left, one);
    if (room < wanted)
        log_warn("the disk of %s has %s free, and checkpoint.keep=%lld needs %s, because a new checkpoint is written before an old one is "
                 "removed: free space, or set checkpoint.keep lower",
            where, left, (long long)config->checkpoint.keep, all);
    return true;
}

/* `done`: steps of the run so far, or the step of the fork's origin. */
static bool check_steps(const Config *config, int64_t done, bool forked, Error *error) {
    if (done <= config->steps) return true;
    if (forked)
        return error_set(error, ERROR_USAGE,
            "steps=%lld is below step %lld of %s, from which fork=%s would continue: use more steps, or fork an earlier checkpoint with "
            "from=STEP",
            (long long)config->steps, (long long)done, config->fork, config->run);
    return error_set(error, ERROR_USAGE,
        "steps=%lld is below the %lld steps that %s has done: use more steps, or another run folder; smelt train %s fork=NEW from=STEP "
        "continues from an earlier checkpoint",
        (long long)config->steps, (long long)done, config->run, config->run);
}

static bool make_order(Loop *loop, Error *error) {
    int64_t inputs[MIXTURE_MOST_SOURCES];
    for (int i = 0; i < loop->phases.mixture.source_count; i++) inputs[i] = corpus_inputs(&loop->corpus, i);
    loop->order = phases_order(&loop->phases, inputs, loop->settings.steps, error);
    return loop->order != NULL;
}

/* Returns whether a path is the folder or lies inside it. The end of the path need not exist. */
static bool run_lies_in(const char *path, const char *folder) {
    SCOPED_FREE char *part = memory_copy_string(path);
    char *slash = part;
    while (file_kind(part, NULL) == FILE_ABSENT && (slash = strrchr(part, '/')) && slash > part) *slash = '\0';
    SCOPED_FREE char *real = realpath(slash ? part : ".", NULL);
    for (bool more = real != NULL; more; *slash = '\0') {
        if (file_same(real, folder)) return true;
        slash = strrchr(real, '/');
        more = slash > real;
    }
    return false;
}

/* A run writes text, such as its log, which must not be read as training data. */
static bool check_run_place(const Loop *loop, Error *error) {
    const Config *config = &loop->settings;
    const Mixture *mixture = &loop->phases.mixture;
    for (int i = 0; i <= mixture->source_count; i++) {
        const char *data = i < mixture->source_count ? mixture->sources[i].path : config->data.valid;
        if (file_kind(data, NULL) != FILE_FOLDER || !run_lies_in(config->run, data)) continue;
        return error_set(error, ERROR_USAGE,
            "run=%s is inside the data folder %s, so the run's files would be read as data: use a folder elsewhere", config->run, data);
    }
    return true;
}

/* Notes whether the folder is new; if so, a start that fails removes it. */
static bool lock_run(Loop *loop, Error *error) {
    const char *run = loop->settings.run;
    bool absent = file_kind(run, NULL) == FILE_ABSENT, is_run = source_is_run(run);
    Error both = {0};
    if (!source_check_run(run, loop->settings.init, error) || (!is_run && !check_run_place(loop, error))) return false;
    if (is_run && !source_check_run_alone(run, &both)) log_warn("%s", both.message);
    if (loop->settings.fork[0] && !run_is_ours(run))
        return error_set(error, ERROR_USAGE, "fork=%s is a folder with files that do not belong to a run: use a new folder", run);
    if (!run_lock(run, &loop->lock, error)) return false;
    SCOPED(file_list_free) FileList list = {0};
    if (!file_list(run, &list, error)) return false;
    loop->new_folder = absent && !list.count; /* no other process has started there and ended in the meantime */
    return true;
}

/* Rank 0 makes the run folder and packs text after all other checks; then the others open the
 * results. */
static bool open_run(Loop *loop, Error *error) {
    const Config *config = &loop->settings;
    bool opened = check_settings(config, comm_size(loop->comm), error) && identity_check_words(config->resume.accept, error);
    if (loop_leads(loop))
        opened =
            opened && lock_run(loop, error) && run_open(config, error) && lineage_find(config, &loop->origin, error) &&
            (config->epochs > 0 /* the data gives the steps */ || check_steps(config, loop->origin.step, loop->origin.forked, error)) &&
            take_store(loop, loop->origin.number, error) && (!loop->origin.forked || corpus_fork(config, error)) &&
            corpus_open(&loop->corpus, config, &loop->phases, loop->origin.step ? CORPUS_PACKED : CORPUS_NEW, error);
    if (!loop_agree(loop, "run folder", opened, error) || !loop_agree(loop, "store", see_store(loop, error), error)) return false;
    if (!comm_host_broadcast(loop->comm, "origin", &loop->origin, sizeof loop->origin, COMM_U8, 0, error)) return false;
    opened = (loop_leads(loop) || corpus_open(&loop->corpus, config, &loop->phases, CORPUS_MADE, error)) &&
             corpus_resolve_steps(&loop->settings, corpus_inputs(&loop->corpus, 0), loop->origin.at, error) &&
             phases_set_length(&loop->phases, &loop->settings, error) && make_order(loop, error);
    return loop_agree(loop, "corpus", opened, error) && identify(loop, error);
}

/* Turns the session into the session of a phase, planned but not started. */
static bool plan_phase(Loop *loop, int phase, Error *error) {
    session_free(&loop->session);
    loop->phase = phase;
    loop->config = &loop_phase(loop)->config;
    return session_plan_rank(&loop->session, loop->config, loop->device, comm_rank(loop->comm), comm_size(loop->comm), error);
}

/* Resolves recompute=auto for a phase: all ranks take the policy of the rank that must recompute
 * most. */
static bool choose_phase_recompute(Loop *loop, int phase, Error *error) {
    Config *config = &loop->phases.items[phase].config;
    if (config->recompute != RECOMPUTE_AUTO) return true;
    int64_t policy = fit_recompute(config, loop->device, comm_rank(loop->comm), comm_size(loop->comm), loop->available);
    if (!comm_host_all_reduce(loop->comm, "recompute", &policy, 1, COMM_I64, COMM_MAX, error)) return false;
    config->recompute = (int)policy;
    return true;
}

/* Prints the choice of recompute=auto for the planned phase. */
static void say_recompute(const Loop *loop) {
    static const char *const names[] = {"none", "norm", "attention", "block"};
    const Phase *phase = loop_phase(loop);
    if (!loop_leads(loop) || loop->settings.recompute != RECOMPUTE_AUTO || phase->config.recompute == RECOMPUTE_NONE) return;
    log_info("chose recompute=%s, the least that fits into memory%s%s", names[phase->config.recompute], phase->name ? ", in phase " : "",
        phase->name ? phase->name : "");
}

/* Checks before the first step that every phase fits, so that a run does not fail after days. */
static bool plan_session(Loop *loop, Error *error) {
    loop->available = train_memory(loop->comm, loop->device);
    if (!phases_open(&loop->phases, &loop->settings, error)) return false;
    for (int i = loop->phases.count; i-- > 0;) {
        if (choose_phase_recompute(loop, i, error) && plan_phase(loop, i, error)) {
            say_recompute(loop);
            if (session_check_memory(&loop->session, loop->available, error) &&
                session_check_host_memory(&loop->session, comm_local_size(loop->comm), error))
                continue;
        }
        return loop_phase(loop)->name ? error_context(error, "phase %s of data.train=%s", loop_phase(loop)->name, loop->settings.data.train)
                                      : false;
    }
    return true;
}

/* Records the checkpoint of a process that was killed after a save and before its record. */
static void record_checkpoint(Loop *loop) {
    Error error = {0};
    int64_t step = loop->session.step;
    if (step == 0 || metrics_saved(loop->metrics) >= step) return;
    loop_note_record(loop, metrics_checkpoint(loop->metrics, step, NAN, -1, &error), &error);
}

static bool open_records(Loop *loop, Error *error) {
    if (loop->config->profile || !loop_leads(loop)) return true;
    const Config *config = &loop->settings;
    if (loop->origin.forked && !metrics_fork(config->fork, config->run, loop->session.step, error)) return false;
    bool again = loop_owes_evaluation(loop) && loop->session.evaluated != loop->session.step;
    loop->metrics = metrics_open(config->run, loop->session.step, again, config->tensorboard, error);
    if (!loop->metrics) return false;
    loop->events = events_open(config, error);
    if (!loop->events || !exporter_open(config, &loop->exporter, error)) return false;
    loop->sampler = sampler_open(config->metrics.system);
    console_open_log(loop->host->console, config->run);
    record_checkpoint(loop);
    SCOPED_FREE char *device = op_describe(&loop->session.training.backend);
    Computer computer = {comm_size(loop->comm), device};
    return report_start(loop, error) && lineage_write(config, &loop->origin, &computer, loop->identity, loop->changes, error);
}
/* -- Warnings ------------------------------------------------------------------------------------------------------ */

/* Warns before the first step if `smelt convert` will refuse the model: no class of transformers
 * supports it, its class has no router biases, or PEFT does not support the adapters. */
static void warn_of_export(const Loop *loop) {
    const Config *config = &loop->settings;
    Error reason = {0};
    if (config->lora.rank && !peft_check_modules(&config->model, loop->session.training.model.graph, &reason))
        log_warn("smelt convert adapter=true cannot write the adapters of this run: %s", reason.message);
    if (!hf_check(&config->model, &reason)) log_warn("smelt convert cannot write this model as a Hugging Face folder: %s", reason.message);
    else if (hf_class(&config->model)->lacks_router_biases && config->optimizer.balance_lr > 0 && !config->lora.rank)
        log_warn("optimizer.balance_lr=%g trains load-balancing biases, but %s has none, so smelt convert cannot write the model; to "
                 "balance without biases, set optimizer.balance_lr=0 with model.auxiliary_loss",
            config->optimizer.balance_lr, hf_class(&config->model)->architecture);
}

static void warn_of_fp8(const Loop *loop) {
    fp8_warn_if_idle(&loop->config->model, &loop->fp8, loop->phases.count > 1 ? " in this phase" : "");
}

/* Text that is read up to 4 times teaches almost as much as new text, and beyond 16 times almost
 * nothing (Muennighoff et al. 2023, arXiv 2305.16264, figure 5). */
static void warn_of_repetition(const Loop *loop) {
    enum { GOOD = 4, MUCH = 16 };
    const Config *config = loop->config;
    if (model_makes_images(&config->model) || loop->corpus.prompts.count) return; /* each reading has other noise, or other samples */
    int64_t held = loop->corpus.train[0].token_count;
    int64_t read = phases_tokens(&loop->phases, phases_advance(&loop->phases, loop_position(loop), config->steps).samples);
    if (loop_phase(loop)->name || read / held < MUCH) return; /* a mixture sets how often its sources may be read */
    log_warn("%lld steps read the %lld tokens of data.train %lld times, so the model will memorize them: use more text, or fewer steps "
             "(%lld steps read it %d times)",
        (long long)config->steps, (long long)held, (long long)(read / held), (long long)int_max(1, GOOD * held / config->batch.tokens),
        GOOD);
}

/* Suggests validation data: NAME-valid, if smelt data pack wrote it next to NAME-train. */
static char *advise_valid(const char *train) {
    static const char part[] = "-train";
    bool named = ends_with(train, part);
    SCOPED_FREE char *valid = named ? memory_format("%.*s-valid", (int)(strlen(train) - strlen(part)), train) : memory_copy_string("");
    SCOPED_FREE char *index = memory_format("%s.idx", valid);
    bool packed = named && (file_exists(index) || file_exists(valid));
    return packed ? memory_format("data.valid=%s", valid)
                  : memory_copy_string("data.valid_documents=0.01, or data.valid to a text or a shard");
}

static bool is_in_bucket(const Config *config, const char *path) {
    (void)config;
    return remote_is(path);
}

/* Returns whether `is` is true for some source or the validation data. */
static bool any_data(const Loop *loop, bool (*is)(const Config *config, const char *path)) {
    const Mixture *mixture = &loop->phases.mixture;
    const char *valid = loop->settings.data.valid;
    bool any = valid[0] && is(&loop->settings, valid);
    for (int i = 0; i < mixture->source_count; i++) any = any || is(&loop->settings, mixture->sources[i].path);
    return any;
}

/* Returns the maximum of ranks that sum gradients of one matrix over the axes in `among`. */
static int most_sharing(const Layout *layout, MeshAxes among) {
    int most = 1;
    for (const LayoutBucket *bucket = layout->buckets; bucket < layout->buckets + layout->bucket_count; bucket++)
        if (!bucket->vectors && !bucket->frozen) most = (int)int_max(most, mesh_size(layout->mesh, bucket->axes & among));
    return most;
}

static RunFacts collect_facts(const Loop *loop) {
    const Config *config = &loop->settings;
    const Session *session = &loop->session;
    const Corpus *corpus = &loop->corpus;
    const Mixture *mixture = &loop->phases.mixture;
    RunFacts facts = {.has_ranks = comm_size(loop->comm) > 1,
        .repeats = most_sharing(session->layout, AXES_ALL) > 1,
        .shares_weights = most_sharing(session->layout, AXES_ALL & ~MESH(AXIS_REPLICA)) > 1,
        .has_cpu = device_info(loop->device)->host_memory,
        .packs = any_data(loop, corpus_is_text),
        .splits = !mixture_is(config->data.train) && corpus_is_text(config, config->data.train),
        .has_bucket = any_data(loop, is_in_bucket),
        .has_valid = corpus->has_valid,
        .has_tokenizer = corpus->tokenizer,
        .writes = corpus->tokenizer || corpus->bytes,
        .continues = !loop->new_folder,
        .leaves_ramp = mixture->phases[0].ramp_tokens == 0};
    for (int i = 0; i < loop->phases.count; i++) {
        const Config *phase = &loop->phases.items[i].config;
        int64_t round = mesh_size(session->mesh, AXES_DATA) * phase->batch.sequences * phase->data.length;
        bool again = phase->batch.tokens > round || phase->batch.ramp_steps > 0;
        facts.has_rounds = facts.has_rounds || (again && session->layout->stage < 3);
        facts.exceeds_window = facts.exceeds_window || phase->data.length > phase->model.window;
        facts.leaves_theta = facts.leaves_theta || mixture->phases[i].rope_theta <= 0;
    }
    return facts;
}

static void warn_of_settings_without_effect(const Loop *loop) {
    const Config *config = &loop->settings, *said = loop->host->said;
    const RunFacts facts = collect_facts(loop);
    needs_warn(config, said, &facts);
    if (said->schedule.kind == SCHEDULE_WSD && config->schedule.decay == 0)
        log_warn("schedule.kind=wsd with schedule.decay=0 never lowers the learning rate: set schedule.decay to the number of decay steps");
    if (said->eval.every && !facts.has_valid) {
        SCOPED_FREE char *cure =
            model_makes_images(&config->model) ? memory_copy_string("data.valid to encodings") : advise_valid(config->data.train);
        log_info("eval.every has no effect without validation data: set %s", cure);
    }
    if (config->layout.zero == 2 && config->optimizer.in_backward && facts.shares_weights)
        log_warn("with optimizer.in_backward=true, layout.zero=2 saves no more than layout.zero=1, because no set of gradients is left to "
                 "shard: set layout.zero=3 to shard the weights too");
    if (config->layout.zero == 2 && config->layout.pp > 1 && facts.shares_weights)
        log_warn("layout.zero=2 has the effect of layout.zero=1 in a pipeline, because gradients stay whole until the step ends: "
                 "layout.zero=3 saves more");
}

/* -- All of it ----------------------------------------------------------------------------------------------------- */

static bool resume(Loop *loop, Error *error) {
    const Origin *origin = &loop->origin;
    SCOPED_FREE char *where = lineage_store(&loop->settings, origin, error);
    return loop_agree(loop, "store of the checkpoint", where, error) &&
           session_resume(&loop->session, where, origin->forked ? origin->step : 0, error);
}

static bool start_phase(Loop *loop, int phase, Error *error) {
    Session *session = &loop->session;
    bool fresh = phase == loop->phase && !session->comm;
    if (!fresh && !plan_phase(loop, phase, error)) return false;
    session->identity = loop->identity;
    session->lease = loop->lease;
    bool has_reference;
    if (!session_start(session, loop->comm, error) || !loop_has_reference(loop, &has_reference, error)) return false;
    bool late = !has_reference && loop->origin.step; /* the checkpoint no longer has the first weights */
    if (late && !(load_initial(loop, error) && loop_make_reference(loop, error))) return false;
    return resume(loop, error) && load_initial(loop, error) && (has_reference || late || loop_make_reference(loop, error));
}

/* Opens a session with the state of the newest good checkpoint, for the phase of its next sample.
 * This is the phase of `sample`, unless that checkpoint is damaged and an older one is loaded. */
static bool open_phase(Loop *loop, int64_t sample, Error *error) {
    int phase = phases_find(&loop->phases, sample), planned;
    do {
        planned = phase;
        if (!start_phase(loop, planned, error)) return false;
        phase = phases_find(&loop->phases, loop->session.samples);
    } while (phase != planned);
    loop->fp8 = fp8_count_use(loop->session.training.model.graph, &loop->config->model);
    return comm_host_all_reduce(loop->comm, "layers in fp8", &loop->fp8, sizeof loop->fp8 / sizeof(int64_t), COMM_I64, COMM_SUM, error);
}

/* Records that a phase of a mixture begins here. */
static void note_phase(Loop *loop) {
    const Session *session = &loop->session;
    Error error = {0};
    bool begins = loop_phase(loop)->name && session->samples == loop_phase(loop)->first_sample && session->step < loop->config->steps;
    if (!begins || !loop->metrics) return;
    if (session->step > loop->origin.step) summary_phase(loop); /* the start lists the phases from its step on */
    json_auto_t *details = phases_describe(&loop->phases, loop->phase);
    loop_note_record(loop, metrics_phase(loop->metrics, session->step, details, &error), &error);
}

static bool open_data(Loop *loop, Error *error) { return loop_agree(loop, "data of the phase", loop_open_loader(loop, error), error); }

bool loop_next_phase(Loop *loop, Error *error) {
    const int64_t step = loop->session.step;
    loop_close_loader(loop);
    loop->pace = (Pace){0};
    loop->origin.forked = false; /* the checkpoint is this run's */
    if (!open_phase(loop, loop->session.samples, error)) return false;
    if (loop->session.step != step)
        return error_set(error, ERROR_CHECKPOINT,
            "the checkpoint of step %lld, the last of a phase, was saved but cannot be read: the same command continues from step %lld",
            (long long)step, (long long)loop->session.step);
    if (!open_data(loop, error)) return false;
    note_phase(loop);
    if (loop_leads(loop)) warn_of_fp8(loop);
    watchdog_alive(loop->watchdog, step);
    return true;
}

static bool start_session_of_run(Loop *loop, Error *error) {
    const Config *config = &loop->settings;
    Session *session = &loop->session;
    bool ready = loop_agree(loop, "plan", plan_session(loop, error), error) && open_run(loop, error);
    for (int i = 0; i < loop->phases.count; i++) ready = ready && evaluate_check(&loop->phases.items[i].config, &loop->corpus, error);
    if (!loop_agree(loop, "data", ready, error) || !loop_open_rewards(loop, error)) return false;
    if (!open_phase(loop, loop->origin.at.samples, error) || !check_steps(config, session->step, loop->origin.forked, error)) return false;
    if (!session->step && loop->origin.step)
        return error_set(
            error, ERROR_CHECKPOINT, "the checkpoint of step %lld disappeared during the start: start again", (long long)loop->origin.step);
    if (loop_leads(loop)) {
        summary_start(loop);
        warn_of_settings_without_effect(loop);
        warn_of_fp8(loop);
    }
    if (loop_leads(loop) && !session->step) {
        warn_of_export(loop);
        warn_of_repetition(loop);
    }
    if (!loop_agree(loop, "prompt", text_sample_prompt(session, &loop->corpus, &loop->prompt, error), error) ||
        !loop_agree(loop, "pictures", picture_sample_check(session, &loop->corpus, error), error))
        return false;
    if (!loop_agree(loop, "disk", check_disk(loop, error), error)) return false;
    loop->measured_flops = measure_gemm(config, loop->device);
    if (!loop_open_rollouts(loop, error)) return false;
    if (!open_data(loop, error) || !loop_agree(loop, "start", open_records(loop, error), error)) return false;
    note_phase(loop);
    return true;
}

bool loop_start(Loop *loop, Error *error) {
    bool started = start_session_of_run(loop, error);
    loop->new_folder = loop->new_folder && !started;
    return started;
}

void loop_close(Loop *loop) {
    watchdog_stop(loop->watchdog);
    events_close(loop->events);
    exporter_close(loop->exporter);
    sampler_close(loop->sampler);
    if (loop->metrics) metrics_close(loop->metrics);
    loop_close_loader(loop);
    routing_recorder_free(&loop->routing);
    loop_close_rollouts(loop);
    session_free(&loop->session);
    lease_release(loop->lease);
    corpus_close(&loop->corpus);
    token_ids_free(&loop->prompt);
    phases_close(&loop->phases);
    order_free(loop->order);
    json_decref(loop->identity);
    json_decref(loop->changes);
    Error kept = {0};
    if (loop->new_folder && !file_remove(loop->settings.run, &kept)) log_warn("%s", kept.message);
    if (loop->lock >= 0) close(loop->lock);
}

bool train_settings_agree(const Config *config, Comm *comm, Error *error) {
    const Loop loop = {.comm = comm};
    json_auto_t *settings = identity_settings(config, true);
    json_object_set_new(settings, "version", json_string(SMELT_VERSION));
    return loop_agree(&loop, "settings", identity_agree(comm, "settings", settings, error), error);
}
