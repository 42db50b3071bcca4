/* The first and the last lines of a training, for users before and after a long run. Owns
 * nothing. */
#include "train/summary_internal.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "device/device.h"
#include "formats/peft.h"
#include "run/run.h"
#include "token/tokenizer.h"

typedef struct SummaryText { char text[32]; } SummaryText;

static SummaryText format_count(int64_t number) {
    SummaryText text;
    log_format_count((double)number, text.text);
    return text;
}

static SummaryText format_bytes(int64_t number) {
    SummaryText text;
    log_format_bytes((double)number, text.text);
    return text;
}

/* -- Start --------------------------------------------------------------------------------------------------------- */

static void describe_model(Console *console, const Session *session) {
    const Config *config = session->config;
    const ModelSize *size = &session->size;
    char used[64] = "", part[64] = "all trained";
    if (size->active != size->parameters) snprintf(used, sizeof used, ", %s active per token", format_count(size->active).text);
    if (config->lora.rank)
        snprintf(part, sizeof part, "%s trained (lora.rank=%lld)", format_count(size->trained).text, (long long)config->lora.rank);
    console_print(console, "model    %s, %lld layer%s of width %lld: %s parameters%s, %s", family_of(&config->model)->name,
        (long long)config->model.layers, plural(config->model.layers), (long long)config->model.width, format_count(size->parameters).text,
        used, part);
}

/* Writes "bf16, linear layers in fp8 by recipe row; %peak is of 1979 TFLOP/s, the vendor's for
 * dense GEMMs in fp8". */
static void describe_precision(const Loop *loop, double peak, char *text, size_t size) {
    char recipe[16];
    size_t used = (size_t)snprintf(text, size, "%s", precision_name(loop->config->precision));
    if (!loop->fp8.layers[FP8_CHOSEN] && !loop->fp8.heads[FP8_CHOSEN]) return;
    config_recipe_name(loop->config, recipe);
    used += (size_t)snprintf(text + used, size - used, ", linear layers in fp8 by recipe %s", recipe);
    if (!isnan(peak)) snprintf(text + used, size - used, "; %%peak is of %.0f TFLOP/s, the vendor's for dense GEMMs in fp8", 1e-12 * peak);
}

static void describe_device(Console *console, const Loop *loop, double peak) {
    const Session *session = &loop->session;
    const DeviceInfo *device = device_info(session->device);
    char precision[160];
    describe_precision(loop, peak, precision, sizeof precision);
    const Layout *layout = session->layout;
    SCOPED_FREE char *machine = run_describe_machine(), *kernels = op_describe(&session->training.backend);
    int threads = omp_get_max_threads();
    if (device->host_memory)
        console_print(console, "device   %s: %s, %d thread%s, %s", machine, kernels, threads, plural(threads), precision);
    else console_print(console, "device   %s (%s), %s", device->name, device->target, precision);
    if (comm_size(session->comm) == 1) return;
    char ranks[256], balance[96] = "";
    comm_describe(session->comm, ranks, sizeof ranks);
    if (layout->muon_balance > 0)
        snprintf(balance, sizeof balance, "; Muon's work on the busiest rank is %.2f times the mean", layout->muon_balance);
    console_print(console, "ranks    %s, ZeRO stage %d, %d bucket%s%s", ranks, layout->stage, layout->bucket_count,
        plural(layout->bucket_count), balance);
}

/* Returns the position at the end of the run. */
static Position run_end(const Loop *loop) {
    Position now = loop_position(loop);
    return phases_advance(&loop->phases, now, loop->settings.steps - now.step);
}

/* Writes ", the last one of 16", in tokens or in units of `unit` tokens; "" if the last step is a
 * full step. */
static void describe_last(const Loop *loop, int64_t unit, char *text, size_t size) {
    int64_t last = loop->settings.batch.last;
    text[0] = '\0';
    if (last && last < loop->config->batch.tokens) snprintf(text, size, ", the last one of %lld", (long long)(last / unit));
}

/* Writes " in 12k documents"; "" if the format of the shards has no index of documents. */
static void describe_documents(const ShardSet *set, char *text, size_t size) {
    text[0] = '\0';
    if (set->document_count >= 0)
        snprintf(text, size, " in %s document%s", format_count(set->document_count).text, plural(set->document_count));
}

/* Writes ", packed by best fit with 1.23% padding"; "" if documents are cut. */
static void describe_padding(const Corpus *corpus, int source, char *text, size_t size) {
    const BinPlan *bins = corpus->bins ? &corpus->bins[source] : NULL;
    text[0] = '\0';
    if (!bins || !bins->bins) return; /* or no phase reads it */
    snprintf(text, size, ", packed by best fit with %.2f%% padding",
        100 * (1 - (double)bins->inputs / ((double)bins->bins * (double)bins->length)));
}

static void describe_text(const Loop *loop, const char *valid, const char *tokenizer) {
    Console *console = loop->host->console;
    const Config *config = loop->config;
    const ShardSet *train = &loop->corpus.train[0];
    int64_t samples = divide_up(corpus_inputs(&loop->corpus, 0), config->data.length), drawn = run_end(loop).samples;
    char padding[96], documents[64], last[48];
    describe_last(loop, 1, last, sizeof last);
    describe_padding(&loop->corpus, 0, padding, sizeof padding);
    describe_documents(train, documents, sizeof documents);
    console_print(console, "data     %s tokens%s: %s sequence%s of %lld%s; validation %s; tokenizer %s",
        format_count(train->token_count).text, documents, format_count(samples).text, plural(samples), (long long)config->data.length,
        padding, valid, tokenizer);
    console_print(console, "steps    %lld of %lld tokens%s: %s tokens, %.3g epoch%s", (long long)config->steps,
        (long long)config->batch.tokens, last, format_count(drawn * config->data.length).text, (double)drawn / (double)samples,
        drawn == samples ? "" : "s");
}

/* Prints "1.80k images of up to 64 tokens, in 3 files; validation 200 images". */
static void image_lines(const Loop *loop) {
    Console *console = loop->host->console;
    const Config *config = loop->config;
    const EncodingSet *train = &loop->corpus.images;
    int64_t drawn = run_end(loop).samples;
    char valid[64] = "none", last[48];
    describe_last(loop, config->data.length, last, sizeof last);
    if (loop->corpus.has_valid) snprintf(valid, sizeof valid, "%s images", format_count(loop->corpus.valid_images.samples).text);
    console_print(console, "data     %s image%s of up to %lld tokens, in %lld file%s; validation %s", format_count(train->samples).text,
        plural(train->samples), (long long)train->most_tokens, (long long)train->file_count, plural(train->file_count), valid);
    console_print(console, "steps    %lld of %lld images%s: %s images, %.3g epochs", (long long)config->steps,
        (long long)(config->batch.tokens / config->data.length), last, format_count(drawn).text, (double)drawn / (double)train->samples);
}

void summary_phase(const Loop *loop) {
    Position now = loop_position(loop);
    SCOPED_FREE char *line = phases_line(&loop->phases, &now, loop->settings.steps);
    console_print(loop->host->console, "phase    %s", line);
}

static void mixture_lines(const Loop *loop, const char *valid, const char *tokenizer) {
    Console *console = loop->host->console;
    const Mixture *mixture = &loop->phases.mixture;
    int64_t steps = loop->settings.steps;
    Position end = run_end(loop);
    console_print(console, "data     %s; validation %s; tokenizer %s", loop->settings.data.train, valid, tokenizer);
    for (int i = 0; i < mixture->source_count; i++) {
        const ShardSet *set = &loop->corpus.train[i];
        char padding[96], documents[64];
        describe_padding(&loop->corpus, i, padding, sizeof padding);
        describe_documents(set, documents, sizeof documents);
        console_print(console, "source   %s: %s tokens%s%s, to be read %.3g times (at most %g)", mixture->sources[i].name,
            format_count(set->token_count).text, documents, padding, order_epochs(loop->order, i, end.samples), mixture->sources[i].epochs);
    }
    for (Position at = loop_position(loop); at.step < steps; at = phases_advance_phase(&loop->phases, at, steps)) {
        SCOPED_FREE char *line = phases_line(&loop->phases, &at, steps);
        console_print(console, "phase    %s", line);
    }
    int64_t own = phases_own_steps(&loop->phases);
    char other[96] = "", last[48];
    describe_last(loop, 1, last, sizeof last);
    if (own && own != steps)
        snprintf(
            other, sizeof other, "; the phases in the file have %lld steps: steps=%lld trains them all", (long long)own, (long long)own);
    console_print(console, "steps    %lld%s, %s tokens%s", (long long)steps, last,
        format_count(phases_tokens(&loop->phases, end.samples)).text, other);
}

/* Prints "1.80k prompts; validation 200 prompts" and how they are used. */
static void prompt_lines(const Loop *loop) {
    Console *console = loop->host->console;
    const Config *config = loop->config;
    const RlConfig *rl = &config->rl;
    int64_t prompts = (int64_t)loop->corpus.prompts.count;
    char valid[64] = "none";
    if (loop->corpus.has_valid) snprintf(valid, sizeof valid, "%s prompts", format_count((int64_t)loop->corpus.valid_prompts.count).text);
    console_print(console, "data     %s prompt%s; validation %s", format_count(prompts).text, plural(prompts), valid);
    console_print(console, "steps    %lld, %lld for each rollout of %lld prompts x %lld samples of up to %lld tokens; loss %s",
        (long long)config->steps, (long long)rl_rollout_steps(rl), (long long)rl->prompts, (long long)rl->samples, (long long)rl->tokens,
        policy_rule(&config->model.policy)->name);
}

static void data_lines(const Loop *loop) {
    const Corpus *corpus = &loop->corpus;
    const char *tokenizer = corpus->bytes ? "bytes" : corpus->tokenizer ? loop->config->data.tokenizer : "not known";
    char valid[64] = "none";
    if (corpus->image_length) {
        image_lines(loop);
        return;
    }
    if (corpus->prompts.count) {
        prompt_lines(loop);
        return;
    }
    if (corpus->has_valid) snprintf(valid, sizeof valid, "%s tokens", format_count(corpus->valid.token_count).text);
    (loop_phase(loop)->name ? mixture_lines : describe_text)(loop, valid, tokenizer);
}

static void describe_memory(Console *console, const Session *session, int64_t available) {
    Budget budget = session_budget(session);
    char of[64] = "", copy[80] = "", hosted[80] = "", generation[128] = "";
    bool host = device_info(session->device)->host_memory;
    if (available >= 0) snprintf(of, sizeof of, " of %s", format_bytes(available).text);
    if (budget.generation)
        snprintf(generation, sizeof generation, ", generation at least %s (%s for all rl.slots)", format_bytes(budget.generation).text,
            format_bytes(budget.generation_most).text);
    if (budget.copy) snprintf(copy, sizeof copy, "%s checkpoint copy %s", host ? "," : "; in host memory", format_bytes(budget.copy).text);
    if (budget.hosted) snprintf(hosted, sizeof hosted, "; pinned in host memory %s of the optimizer", format_bytes(budget.hosted).text);
    console_print(console, "memory   %s%s: weights %s, gradients %s, optimizer %s, activations %s, other %s%s%s%s",
        format_bytes(budget.total).text, of, format_bytes(budget.weights + budget.quantized + budget.master).text,
        format_bytes(budget.gradients).text, format_bytes(budget.optimizer + budget.scratch).text, format_bytes(budget.activations).text,
        format_bytes(budget.evaluation + budget.other + budget.collectives + budget.trials).text, generation, hosted, copy);
}

void summary_start(const Loop *loop) {
    Console *console = loop->host->console;
    const Session *session = &loop->session;
    const Config *config = session->config;
    if (loop->origin.forked)
        console_print(console, "run      %s is forked from %s after step %lld", config->run, config->fork, (long long)session->step);
    else if (session->step) console_print(console, "run      continuing %s after step %lld", config->run, (long long)session->step);
    else console_print(console, "run      %s, new", config->run);
    describe_model(console, session);
    describe_device(console, loop, loop->host->peak_flops);
    data_lines(loop);
    describe_memory(console, session, loop->available);
}

/* -- End ----------------------------------------------------------------------------------------------------------- */

static void print_result(const Loop *loop, const SummaryEnd *end) {
    Console *console = loop->host->console;
    int64_t image = loop->corpus.image_length, amount = image ? end->tokens / image : end->tokens;
    const Validation *last = &end->validation;
    char text[32], best[96] = "";
    ConsoleLoss loss = console_loss(console);
    int64_t done = end->step - end->first;
    log_format_duration(end->seconds, text);
    console_print(console, "done     %lld step%s, %s %s in %s: %s %s/s", (long long)done, plural(done), format_count(amount).text,
        image ? "images" : "tokens", text, format_count((int64_t)((double)amount / end->seconds)).text, image ? "img" : "tok");
    if (loss.steps)
        console_print(console, "loss     %.5f at step %lld; %.5f smoothed over %lld step%s", loss.last, (long long)end->step, loss.smooth,
            (long long)loss.steps, plural(loss.steps));
    if (last->best_step && last->best_step != last->step)
        snprintf(best, sizeof best, "; best %.5f at step %lld", last->best_loss, (long long)last->best_step);
    if (last->step) console_print(console, "valid    %.5f at step %lld%s", last->loss, (long long)last->step, best);
}

/* Quotes a text for a shell. The caller frees it. */
static char *quote(const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:@%,";
    if (*text && text[strspn(text, plain)] == '\0') return memory_copy_string(text);
    char *quoted = memory_allocate(4 * strlen(text) + 3), *to = quoted;
    *to++ = '\'';
    for (; *text; text++) to += sprintf(to, *text == '\'' ? "'\\''" : "%c", *text);
    *to = '\'';
    return quoted;
}

char *summary_command(const Config *config, const Comm *comm, const char *words) {
    char launch[64] = "", nodes[64] = "";
    SCOPED_FREE char *run = quote(config->run);
    if (comm_size(comm) > 1) snprintf(launch, sizeof launch, "launch -n %d -- ", comm_local_size(comm));
    if (comm_nodes(comm) > 1) snprintf(nodes, sizeof nodes, ", on each of the %d nodes", comm_nodes(comm));
    return memory_format("smelt %strain %s%s%s%s", launch, run, *words ? " " : "", words, nodes);
}

/* Returns whether the run trains on conversations and keeps a chat template, which `smelt chat` needs. */
static bool is_chat(const Loop *loop) {
    if (!loop->corpus.train_count || !loop->corpus.train[0].masked || !loop->corpus.tokenizer) return false;
    Error ignored = {0};
    SCOPED_FREE char *folder = memory_format("%s/tokenizer", loop->settings.run);
    json_auto_t *tokenizer = tokenizer_config(folder, &ignored);
    return json_object_get(tokenizer, "chat_template") != NULL;
}

/* Suggests the next commands: a complete run can be extended, an incomplete run continued. */
static void print_next(const Loop *loop, const SummaryEnd *end) {
    char more[64] = "";
    Console *console = loop->host->console;
    const Config *config = &loop->settings;
    if (end->step >= config->steps) snprintf(more, sizeof more, "steps=%lld", (long long)(2 * config->steps));
    else if (end->exhausted) snprintf(more, sizeof more, "eval.patience=0");
    SCOPED_FREE char *run = quote(config->run), *command = summary_command(config, loop->comm, more);
    console_print(console, "next     smelt report %s    (writes report.html there)", run);
    if (model_makes_images(&config->model))
        console_print(console, "         smelt generate %s encodings.safetensors out=latents.safetensors", run);
    else {
        if (is_chat(loop)) console_print(console, "         smelt chat %s", run);
        else console_print(console, "         smelt generate %s \"Once upon a time\"", run);
        console_print(console, "         smelt eval %s other-texts/", run);
    }
    Error ignored = {0};
    if (config->lora.rank && peft_check_modules(&config->model, loop->session.training.model.graph, &ignored))
        console_print(console, "         smelt convert %s my-adapter adapter=true    (for PEFT)", run);
    console_print(console, "         smelt convert %s my-model%s", run, config->lora.rank ? "    (adapters merged)" : "");
    console_print(console, "         %s    (continues training)", command);
}

/* Prints for each begun phase: "read     pretrain: web 90.01% of 90%, code 9.99% of 10%". */
static void print_mixture(const Loop *loop) {
    for (int i = 0; i < loop->session.begun; i++) {
        SCOPED_FREE char *text = phases_read_text(&loop->phases, loop->order, i, loop->session.samples);
        console_print(loop->host->console, "read     %s: %s", loop->phases.items[i].name, text);
    }
}

void summary_end(const Loop *loop, const SummaryEnd *end) {
    Console *console = loop->host->console;
    const Config *config = &loop->settings;
    print_result(loop, end);
    print_mixture(loop);
    if (end->step < config->steps && end->step == config->stop_at)
        console_print(console, "stopped  by stop_at=%lld, with %lld of %lld steps left", (long long)end->step,
            (long long)(config->steps - end->step), (long long)config->steps);
    print_next(loop, end);
}
