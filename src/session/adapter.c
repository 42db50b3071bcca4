/* Adapters and their base. Checkpoints of a run with adapters hold only the trained parameters. The
 * base comes from the folder that the run's configuration names as init, when training starts or
 * continues. When the run's model is wanted, adapters and base are merged. PEFT's folders
 * (formats/peft.h) are merged with their base in the same way, and are read and written here. */
#include "session/adapter.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_device.h"
#include "base/element.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/lora_targets.h"
#include "formats/peft.h"
#include "images/image_inputs.h"
#include "model/quantized.h"
#include "run/lineage.h"
#include "run/source.h"
#include "session/weights.h"

/* -- The base ------------------------------------------------------------------------------------------------------ */

static bool check_base(const char *folder, const Config *origin, Error *error) {
    if (adapter_is_folder(folder))
        return error_set(error, ERROR_USAGE,
            "%s has adapters: set init to their base, and lora.start to the adapters: init=%s lora.start=%s", folder, origin->init, folder);
    return !origin->lora.rank ||
           error_set(error, ERROR_USAGE,
               "%s trains adapters itself: convert it to a model folder with smelt convert, and use that as the base", folder);
}

/* Returns the table of a graph whose trained rows are called `name`. */
static int find_table_of(const Graph *graph, const char *name) {
    SCOPED_FREE char *table = memory_format("%.*s.weight", (int)(strlen(name) - strlen(LORA_ROWS)), name);
    return graph_find_parameter(graph, table);
}

/* Quantizes a matrix of the source, which has whole parameters, into the program's. */
static bool take_quantized(const Session *session, const WeightSource *source, int parameter, Error *error) {
    const Parameter *p = &session->training.model.graph->parameters[parameter];
    const QuantizedPlace place = session_quantized_place(session, parameter);
    int index = graph_find_parameter(source->graph, p->name);
    const Parameter *from = &source->graph->parameters[index];
    if (!place.values.count && !place.scales.count) return true; /* all of it is in other ranks' shards */
    SCOPED_FREE float *values = memory_allocate((size_t)p->count * sizeof *values);
    if (source->reader)
        return hf_reader_load(source->reader, index, values), quantized_put(session->training.executor, p, &place, values, error);
    for (int64_t i = 0; i < p->count; i++)
        values[i] = (float)element_get((size_t)from->element_bytes, parameter_in(from, source->master), i);
    return quantized_put(session->training.executor, p, &place, values, error);
}

/* Fills this rank's part of trained tables, and of trained rows of tables. */
static void take_tables(Session *session, const WeightSource *source) {
    const Graph *graph = session->training.model.graph;
    Graph *rows = graph_create(graph->precision, false);
    const TokenRuns runs = lora_token_runs(&session->config->lora);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (ends_with(p->name, LORA_ROWS)) graph_parameter(rows, p->name, p->kind, p->rank, p->whole, 0, 0, false);
    }
    SCOPED_FREE char *master = memory_allocate((size_t)rows->parameter_bytes + 1);
    for (int i = 0; i < rows->parameter_count; i++) {
        const Parameter *p = &rows->parameters[i];
        int table = find_table_of(source->graph, p->name);
        for (int r = 0; r < runs.count; r++) {
            const TokenRun *run = &runs.items[r];
            ParameterInterval entries = {table, run->first * p->shape[1], run->count * p->shape[1]};
            weights_take(source, source->graph, entries, graph_state_type(rows, p) == TYPE_COMPUTE, device_cpu(),
                (char *)parameter_in(p, master) + run->row * p->shape[1] * p->element_bytes);
        }
    }
    weights_take_shards(session, source);
    weights_take_shards(session, &(WeightSource){.graph = rows, .master = master});
    graph_free(rows);
}

/* Fills the frozen parameters of the session; matrices go into the weight arena, cast to its
 * type. In a run without steps, trained tables start with the source's values; the caller then
 * calls session_spread_weights. */
static bool take_base_parameters(Session *session, const WeightSource *source, Error *error) {
    const Graph *graph = session->training.model.graph;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (!p->frozen) continue;
        if (p->quantization) {
            if (!take_quantized(session, source, i, error)) return false;
            continue;
        }
        bool base = graph_is_base(graph, p),
             as_bf16 = precision_is_bf16(graph->precision) && (base || graph_state_type(graph, p) == TYPE_COMPUTE);
        HeldMatrix held = {{i, 0, p->count}, parameter_in(p, executor_arena(session->training.executor, ARENA_MASTER))};
        if (base) held = session_held_matrix(session, i);
        if (held.elements.count) weights_take(source, graph, held.elements, as_bf16, session->device, held.weights);
    }
    if (!session->step) take_tables(session, source);
    return true;
}

/* Fills the frozen parameters from a model folder, one after the other. */
static bool take_base_folder(Session *session, const char *folder, const Config *origin, Error *error) {
    const Config *config = session->config;
    SCOPED(model_free) Model base = model_describe(&config->model, NULL, config->precision);
    HfReader *reader = hf_reader_open(folder, &origin->model, base.graph, error);
    if (!reader) return false;
    bool taken = take_base_parameters(session, &(WeightSource){.reader = reader, .graph = base.graph}, error);
    hf_reader_close(reader);
    return taken;
}

static bool take_base_source(Session *session, const char *folder, const Config *origin, Error *error) {
    SCOPED(host_model_close) HostModel base = {0};
    if (!host_model_open(&base, &session->config->model, NULL, session->config->precision, error) ||
        !weights_load(folder, origin, base.model.graph, base.master, NULL, error))
        return false;
    return take_base_parameters(session, &(WeightSource){.graph = base.model.graph, .master = base.master}, error);
}

bool adapter_load_base(Session *session, const char *folder, const Config *origin, Error *error) {
    return check_base(folder, origin, error) &&
           (source_is_model_folder(folder) ? take_base_folder : take_base_source)(session, folder, origin, error) &&
           device_ok(session->device, error);
}

/* -- The adapters -------------------------------------------------------------------------------------------------- */

/* Replaces the parts of the base in `master` that a folder of adapters holds; a run's adapters hold
 * none. */
static bool replace_parts(const char *name, const Graph *graph, void *master, Error *error) {
    SCOPED(peft_close) PeftFolder peft = {0};
    if (!adapter_is_folder(name)) return true;
    SCOPED_FREE char *base = adapter_open(&peft, name, error);
    return base && peft_replace(&peft, graph, master, error);
}

bool adapter_load_alone(HostModel *adapters, const char *name, const Config *config, Precision precision, int64_t *step, Error *error) {
    SCOPED(peft_close) PeftFolder peft = {0};
    SCOPED(host_model_close) HostModel kept = {0};
    const LoraConfig lora = lora_unquantized(config->lora);
    *step = 0;
    if (!host_model_open(adapters, &config->model, &lora, precision, error)) return false;
    if (adapter_is_folder(name)) {
        SCOPED_FREE char *base = adapter_open(&peft, name, error);
        return base && peft_load(&peft, &lora, adapters->model.graph, adapters->master, error);
    }
    if (!host_model_open(&kept, &config->model, &lora, config->precision, error) ||
        !session_load_weights(kept.model.graph, config, name, kept.master, step, error))
        return false;
    weights_convert(adapters->model.graph, adapters->master, kept.model.graph, kept.master);
    return true;
}

bool adapter_same_name(const char *a, const char *b) {
    size_t a_end = path_length(a), b_end = path_length(b), a_begin = a_end, b_begin = b_end;
    while (a_begin > 0 && a[a_begin - 1] != '/') a_begin--;
    while (b_begin > 0 && b[b_begin - 1] != '/') b_begin--;
    return a_end - a_begin == b_end - b_begin && !memcmp(a + a_begin, b + b_begin, a_end - a_begin);
}

/* Warns of properties of the adapters' training that a training from this folder does not take
 * over. */
static void name_differences(const PeftFolder *peft, const Config *config) {
    if (peft->dropout > 0)
        log_warn("lora.start=%s was trained with lora_dropout=%g, but smelt trains without dropout", config->lora.start, peft->dropout);
    if (*peft->base && !adapter_same_name(peft->base, config->init))
        log_warn("lora.start=%s was trained with %s, but init is %s: adapters of another model are useless as a start", config->lora.start,
            peft->base, config->init);
}

/* Fills the parts of a model that the folder has; the other parts are the base's. */
static bool load_parts(const PeftFolder *peft, HostModel *start, const LoraConfig *lora, Error *error) {
    peft_freeze_absent(peft, start->model.graph);
    return peft_load(peft, lora, start->model.graph, start->master, error);
}

/* Loads the newest adapters of the run that lora.start names. */
static bool load_run_start(HostModel *start, const Config *config, Error *error) {
    Config origin;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    const LoraConfig *lora = &config->lora, *own = &origin.lora;
    int64_t step;
    if (!source_read_config(lora->start, &origin, &strings, error)) return false;
    if (own->rank != lora->rank || own->alpha != lora->alpha || own->rslora != lora->rslora || own->experts != lora->experts ||
        strcmp(own->targets, lora->targets) != 0 || strcmp(own->modules_to_save, lora->modules_to_save) != 0 ||
        strcmp(own->tokens, lora->tokens) != 0)
        return error_set(error, ERROR_USAGE,
            "%s has adapters with lora.rank=%lld lora.alpha=%g lora.targets=%s, and other lora settings are set: set those of its "
            "config.yaml",
            lora->start, (long long)own->rank, own->alpha, own->targets);
    return adapter_load_alone(start, lora->start, &origin, config->precision, &step, error);
}

static bool load_peft_start(const Session *session, HostModel *start, Error *error) {
    const Config *config = session->config;
    const LoraConfig *lora = &config->lora;
    SCOPED(peft_close) PeftFolder peft = {0};
    if (!peft_open(&peft, lora->start, error)) return false;
    if (peft.lora.rank != lora->rank || fabs(lora_factor(&peft.lora) - lora_factor(lora)) > 1e-9 * lora_factor(lora))
        return error_set(error, ERROR_USAGE,
            "%s has adapters with lora.rank=%lld lora.alpha=%g%s, but lora.rank=%lld lora.alpha=%g is set: set the values of the adapters",
            lora->start, (long long)peft.lora.rank, peft.lora.alpha, peft.lora.rslora ? " lora.rslora=true" : "", (long long)lora->rank,
            lora->alpha);
    if (!host_model_open(start, &config->model, lora, config->precision, error) || !peft_check_trained(&peft, start->model.graph, error) ||
        !load_parts(&peft, start, lora, error))
        return false;
    if (comm_rank(session->comm) == 0) name_differences(&peft, config);
    return true;
}

bool adapter_load_start(Session *session, Error *error) {
    SCOPED(host_model_close) HostModel start = {0};
    bool run = source_is_run(session->config->lora.start);
    if (!(run ? load_run_start(&start, session->config, error) : load_peft_start(session, &start, error))) return false;
    weights_take_shards(session, &(WeightSource){.graph = start.model.graph, .master = start.master});
    return device_ok(session->device, error);
}

/* -- Merging ------------------------------------------------------------------------------------------------------- */

/* Returns the adapter's half for NAME.weight, or for the experts' matrices NAME; -1: none. */
static int find_half(const Graph *graph, const char *weight, const char *which) {
    size_t stem = strlen(weight) - (ends_with(weight, ".weight") ? strlen(".weight") : 0);
    SCOPED_FREE char *name = memory_format("%.*s.%s.weight", (int)stem, weight, which);
    return graph_find_parameter(graph, name);
}

/* W [out, in] += factor B [out, rank] A [rank, in], in double, a row at a time. */
static void add_lora_update(
    void *weights, bool wide, const double *b, const double *a, int64_t out, int64_t in, int64_t rank, double factor) {
#pragma omp parallel
    {
        double *sums = memory_allocate((size_t)in * sizeof *sums);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < out; r++) {
            memset(sums, 0, (size_t)in * sizeof *sums);
            for (int64_t k = 0; k < rank; k++)
                for (int64_t c = 0; c < in; c++) sums[c] += b[r * rank + k] * a[k * in + c];
            for (int64_t c = 0; c < in; c++)
                if (wide) ((double *)weights)[r * in + c] += factor * sums[c];
                else ((float *)weights)[r * in + c] += (float)(factor * sums[c]);
        }
        free(sums);
    }
}

/* Adds the fp64 adapter (a, b), one per expert or a shared one, to the matrices p [out, in] or [E,
 * out, in]. */
static void merge_parameter(const HostModel *adapters, const Parameter *p, int down, int up, double factor, bool wide, char *weights) {
    const Parameter *a = &adapters->model.graph->parameters[down], *b = &adapters->model.graph->parameters[up];
    const double *a_values = parameter_in(a, adapters->master), *b_values = parameter_in(b, adapters->master);
    int64_t experts = p->rank == 3 ? p->shape[0] : 1, out = p->shape[p->rank - 2], in = p->shape[p->rank - 1], rank = a->shape[a->rank - 2];
    int64_t a_stride = a->rank == 3 ? rank * in : 0, b_stride = b->rank == 3 ? out * rank : 0;
    for (int64_t e = 0; e < experts; e++)
        add_lora_update(weights + e * out * in * (int64_t)(wide ? sizeof(double) : sizeof(float)), wide, b_values + e * b_stride,
            a_values + e * a_stride, out, in, rank, factor);
}

/* Replaces rows of the base's table `p` by the trained rows `q`. */
static void replace_rows(const HostModel *adapters, const Parameter *q, const TokenRun *run, const Parameter *p, char *master) {
    int64_t to = run->first * p->shape[1], from = run->row * p->shape[1];
    for (int64_t i = 0; i < run->count * p->shape[1]; i++)
        element_set((size_t)p->element_bytes, parameter_in(p, master), to + i,
            element_get((size_t)q->element_bytes, parameter_in(q, adapters->master), from + i));
}

/* Replaces whole trained tables, and the rows that lora.tokens names; returns the number of trained
 * parameters. */
static int replace_tables(const HostModel *adapters, const LoraConfig *lora, const Graph *graph, char *master) {
    int replaced = 0;
    for (int i = 0; i < adapters->model.graph->parameter_count; i++) {
        const Parameter *q = &adapters->model.graph->parameters[i];
        bool rows = ends_with(q->name, LORA_ROWS);
        int table = rows ? find_table_of(graph, q->name) : graph_find_parameter(graph, q->name);
        if (q->frozen || table < 0) continue; /* or it is an adapter */
        const Parameter *p = &graph->parameters[table];
        const TokenRuns runs = rows ? lora_token_runs(lora) : (TokenRuns){.count = 1, .items = {{0, p->shape[0], 0}}};
        for (int r = 0; r < runs.count; r++) replace_rows(adapters, q, &runs.items[r], p, master);
        replaced++;
    }
    return replaced;
}

static void merge_adapters(const HostModel *adapters, const LoraConfig *lora, const Graph *graph, char *master) {
    int merged = replace_tables(adapters, lora, graph, master), trained = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        int down = find_half(adapters->model.graph, p->name, "lora_A"), up = find_half(adapters->model.graph, p->name, "lora_B");
        if (down < 0 || up < 0) continue;
        merge_parameter(adapters, p, down, up, lora_factor(lora), graph->precision == PRECISION_FP64, parameter_in(p, master));
        merged += 2;
    }
    for (int i = 0; i < adapters->model.graph->parameter_count; i++) trained += !adapters->model.graph->parameters[i].frozen;
    assert(merged == trained);
    (void)merged, (void)trained;
}

bool adapter_load_merged(const char *name, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error) {
    Config origin;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED(host_model_close) HostModel adapters = {0};
    bool folder = adapter_is_folder(name);
    if (!source_read_config(config->init, &origin, &strings, error) || !check_base(config->init, &origin, error) ||
        !weights_load(config->init, &origin, graph, master, NULL, error)) {
        if (folder) return error_context(error, "%s has adapters of %s", name, config->init);
        return error_context(error, "%s has adapters of init=%s (if it has moved: smelt train %s init=FOLDER)", name, config->init, name);
    }
    if (!folder && !lineage_check_base(name, config, config->init, error)) return false;
    if (!adapter_load_alone(&adapters, name, config, PRECISION_FP64, step, error) || !replace_parts(name, graph, master, error))
        return false;
    merge_adapters(&adapters, &config->lora, graph, master);
    return true;
}

/* -- Comparing the merged model with base and adapters -------------------------------------------------------------- */

enum { COMPARED_TOKENS = 16 };

/* Opens an fp32 program on the CPU over memory with its MASTER arena; for images, of one sample. */
static bool compared_open(Program *c, const Config *config, const LoraConfig *lora, void *master, Error *error) {
    void *shared[ARENA_COUNT] = {[ARENA_MASTER] = master};
    int64_t tokens = COMPARED_TOKENS + (model_makes_images(&config->model) ? config->model.text_tokens : 0);
    ModelConfig model = config->model;
    model.fp8.recipe = FP8_NONE; /* merged matrices round differently in fp8 */
    c->model = model_build_adapted(NULL, &model, lora, PRECISION_FP32, MODEL_LOGITS, 1, tokens, RECOMPUTE_NONE);
    return program_plan(c, device_cpu(), error) && program_start(c, shared, error);
}

/* Returns its output for random inputs: logits of tokens, or velocities of image tokens. */
static TensorId result_of(const Program *c) { return c->model.velocity ? c->model.velocity : c->model.logits; }

static void put_random_tokens(const Program *c, const Config *config) {
    int32_t *tokens = executor_tensor(c->executor, c->model.tokens), *positions = executor_tensor(c->executor, c->model.positions);
    for (int i = 0; i < COMPARED_TOKENS; i++) {
        tokens[i] = (int32_t)(rng_bits(1, 0, (uint64_t)i).word[0] % (uint64_t)config->model.vocabulary);
        positions[i] = i;
    }
}

/* The caller frees the result. */
static float *compute_result(const Program *c, const Config *config) {
    float *result = memory_allocate((size_t)graph_elements(c->model.graph, result_of(c)) * sizeof *result);
    if (c->model.velocity) image_put_synthetic(&c->model, c->executor);
    else put_random_tokens(c, config);
    executor_run(c->executor);
    executor_read(c->executor, result_of(c), result);
    return result;
}

/* Fills the frozen parameters of the adapted model. */
static bool take_base(const HostModel *adapted, const char *name, const Config *config, Error *error) {
    Config origin;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED(host_model_close) HostModel base = {0};
    if (!source_read_config(config->init, &origin, &strings, error) ||
        !host_model_open(&base, &config->model, NULL, PRECISION_FP32, error) ||
        !weights_load(config->init, &origin, base.model.graph, base.master, NULL, error) ||
        !replace_parts(name, base.model.graph, base.master, error))
        return false;
    for (int i = 0; i < base.model.graph->parameter_count; i++) {
        const Parameter *p = &base.model.graph->parameters[i];
        const Parameter *to = &adapted->model.graph->parameters[graph_find_parameter(adapted->model.graph, p->name)];
        if (to->frozen) memcpy(parameter_in(to, adapted->master), parameter_in(p, base.master), (size_t)(p->count * p->element_bytes));
    }
    return true;
}

static bool compute_expected(MergedCheck *check, const char *name, const Config *config, Error *error) {
    int64_t step;
    SCOPED(host_model_close) HostModel adapted = {0};
    SCOPED(program_free) Program with = {0};
    const LoraConfig lora = lora_unquantized(config->lora);
    if (!adapter_load_alone(&adapted, name, config, PRECISION_FP32, &step, error) || !take_base(&adapted, name, config, error) ||
        !compared_open(&with, config, &lora, adapted.master, error))
        return false;
    check->count = graph_elements(with.model.graph, result_of(&with));
    check->expected = compute_result(&with, config);
    for (int64_t i = 0; i < check->count; i++) check->largest = fmax(check->largest, fabs((double)check->expected[i]));
    return true;
}

bool adapter_check_start(MergedCheck *check, const char *name, const Config *config, Error *error) {
    const LoraConfig lora = lora_unquantized(config->lora);
    Model size = model_describe(&config->model, &lora, PRECISION_FP32);
    int64_t bytes = 2 * size.graph->parameter_bytes;
    Error little;
    model_free(&size);
    *check = (MergedCheck){0};
    if (memory_check(bytes, "comparing the merged model with base and adapters", "", &little))
        return compute_expected(check, name, config, error);
    log_warn("the merged model is not compared with base and adapters: %s", little.message);
    return true;
}

void adapter_check_end(MergedCheck *check) { free(check->expected); }

/* The difference is infinity if the model produces NaN. */
static bool measure_difference(const MergedCheck *check, const Config *config, void *master, double *difference, Error *error) {
    SCOPED(program_free) Program merged = {0};
    if (!compared_open(&merged, config, NULL, master, error)) return false;
    SCOPED_FREE float *result = compute_result(&merged, config);
    *difference = 0;
    for (int64_t i = 0; i < check->count; i++) {
        double off = fabs((double)result[i] - check->expected[i]);
        *difference = isnan(off) ? INFINITY : fmax(*difference, off);
    }
    return true;
}

static const char *results_of(const Config *config) { return model_makes_images(&config->model) ? "velocities" : "logits"; }

bool adapter_check_merged(const MergedCheck *check, const char *name, const Config *config, void *master, Error *error) {
    const double bound = 1e-3; /* fraction of the largest number: rounding leaves about 1e-6, a wrong sign the adapters' whole effect */
    double difference;
    if (!check->expected) return true;
    if (!measure_difference(check, config, master, &difference, error)) return false;
    return difference <= bound * check->largest ||
           error_set(error, ERROR_NUMERICS, "%s of the merged model differ by %.2g from %s with its base (amax %.2g): merging failed",
               results_of(config), difference, name, check->largest);
}

bool adapter_check_written(
    const MergedCheck *check, const char *out, const Config *config, const Graph *graph, void *master, Error *error) {
    Config plain = *config;
    double difference;
    plain.lora.rank = 0;
    if (!check->expected) return true;
    if (!weights_load(out, &plain, graph, master, NULL, error) || !measure_difference(check, config, master, &difference, error))
        return error_context(error, "reading the written files");
    log_info("merged: %s of %d tokens differ by at most %.1e between the written model and the base with adapters (amax %.2g)",
        results_of(config), COMPARED_TOKENS, difference, check->largest);
    return true;
}

/* -- PEFT's folder ------------------------------------------------------------------------------------------------- */

static bool is_adapter_file(const char *name) {
    return !strcmp(name, "adapter_config.json") || !strcmp(name, "adapter_model.safetensors") || !strcmp(name, PEFT_IMAGE_FILE) ||
           hf_is_tokenizer_file(name);
}

/* Returns whether `folder` may be replaced. */
static bool check_adapter_folder(const char *folder, bool overwrite, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (!file_list(folder, &list, error)) return error->finding == FINDING_ABSENT;
    for (size_t i = 0; i < list.count; i++) {
        const char *name = list.entries[i].name;
        if (!overwrite)
            return error_set(error, ERROR_USAGE, "%s is not empty: use another folder, or set overwrite=true to replace adapters", folder);
        if (!is_adapter_file(name))
            return error_set(error, ERROR_USAGE, "%s contains %s, which is not part of an adapter: use another folder", folder, name);
    }
    return true;
}

bool adapter_tokenizer_differs(const char *run, const Config *config, bool *differs, Error *error) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED_FREE char *own = source_tokenizer(run, config), *base = NULL;
    Config origin;
    Error ignored = {0};
    *differs = own && *own;
    if (!*differs) return true; /* bytes have no files to write */
    if (source_read_config(config->init, &origin, &strings, &ignored)) base = source_tokenizer(config->init, &origin);
    return !base || (tokenizer_differs(own, base, differs, error) && (*differs || tokenizer_has_other_template(own, base, differs, error)));
}

bool adapter_write(
    const char *run, const Config *config, const HfExport *tokenizer, const char *folder, bool overwrite, int64_t *step, Error *error) {
    SCOPED(host_model_close) HostModel adapters = {0};
    if (!config->lora.rank) return error_set(error, ERROR_USAGE, "%s trains no adapters (lora.rank is 0): remove adapter=true", run);
    if (!check_adapter_folder(folder, overwrite, error) || !adapter_load_alone(&adapters, run, config, PRECISION_FP32, step, error))
        return false;
    SCOPED(file_folder_close) FolderDraft draft = {0};
    return file_folder_begin(&draft, folder, error) &&
           peft_write(draft.temporary, config->init, &config->lora, &config->model, adapters.model.graph, adapters.master, error) &&
           (!tokenizer || hf_write_tokenizer(tokenizer, draft.temporary, error)) && file_folder_commit(&draft, error);
}
