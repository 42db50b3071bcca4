/* `smelt generate MODEL PROMPTS.jsonl`: all prompts of a file through the engine, a JSON line for each
 * sample. Lines are written in the order of the file as soon as all earlier ones are, so a stopped
 * run leaves the results of its first prompts. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/generation.h"
#include "base/array.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "chat/prompts.h"

enum { PROMPTS_LIMIT = 1 << 30 /* bytes of the file */ };

typedef struct BatchSample {
    TokenIds ids;
    GeneratedText text;
    double *log_probabilities; /* of the ids */
    size_t count;
    EngineScore *top; /* [ids, options->top_logprobs]; the token -1: none */
    size_t top_count;
    EngineEnd finish;
    bool ended;
} BatchSample;

typedef struct PromptBatch PromptBatch;
typedef struct BatchPrompt {
    PromptBatch *batch;
    json_t *record; /* as in the file */
    TokenIds tokens;
    int adapter; /* of EngineRequest */
    BatchSample *samples;
} BatchPrompt;

struct PromptBatch {
    const GenerationOptions *options;
    const char *folder, *path;
    const Config *config;
    bool leads; /* writes the results; other ranks compute them too */
    ModelText *text;
    ModelChat chat; /* opened for the first record with messages */
    ChatDocument document;
    StopTexts stops;
    EngineBias *biases;
    int64_t bias_count;
    NamedAdapters adapters;
    BatchPrompt *prompts;
    size_t count;
    int64_t generated, ended; /* tokens; samples */
    File out;                 /* closed: standard output */
    size_t written;           /* samples */
};

static void batch_close(PromptBatch *b) {
    for (size_t i = 0; i < b->count; i++) {
        for (int64_t s = 0; s < b->options->samples && b->prompts[i].samples; s++) {
            token_ids_free(&b->prompts[i].samples[s].ids);
            generated_text_free(&b->prompts[i].samples[s].text);
            free(b->prompts[i].samples[s].log_probabilities);
            free(b->prompts[i].samples[s].top);
        }
        free(b->prompts[i].samples);
        token_ids_free(&b->prompts[i].tokens);
        json_decref(b->prompts[i].record);
    }
    free(b->prompts);
    stop_texts_free(&b->stops);
    free(b->biases);
    adapter_set_close(&b->adapters);
    chat_document_free(&b->document);
    model_chat_close(&b->chat);
    file_close(&b->out);
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

static bool open_template(PromptBatch *b, Error *error) {
    if (b->text->numbers) return error_set(error, ERROR_USAGE, "messages need the tokenizer: remove text=false");
    if (!model_chat_open(&b->chat, b->text, b->folder, b->config, &(ChatOptions){.template = b->options->template}, error)) return false;
    return chat_has_template(b->chat.chat) ||
           error_set(error, ERROR_USAGE, "%s has no chat template for messages: set template=FILE, or template=chatml", b->folder);
}

static bool take_messages(PromptBatch *b, const json_t *messages, TokenIds *tokens, Error *error) {
    if (!b->chat.chat && !open_template(b, error)) return false;
    json_auto_t *conversation = json_pack("{sO}", "messages", messages);
    if (!chat_prompt(b->chat.encoder, conversation, &b->document, error)) return false;
    for (size_t i = 0; i < b->document.ids.count; i++) token_ids_append(tokens, b->document.ids.items[i]);
    return true;
}

/* The members of a result, which a record must not have. */
static const char *const result_names[] = {
    "sample", "completion", "finish", "tokens_generated", "logprob", "ids", "logprobs", "top_logprobs"};

/* Without adapters=, a member that names an adapter is an error, so that it is not silently ignored. */
static bool take_adapter(const PromptBatch *b, const json_t *record, BatchPrompt *prompt, Error *error) {
    const json_t *value = json_object_get(record, "adapter");
    const char *name = json_string_value(value);
    if (!value || json_is_null(value)) return true;
    if (!name) return error_set(error, ERROR_DATA, "adapter is not a text");
    prompt->adapter = strlen(name) == json_string_length(value) ? adapter_set_find(&b->adapters, name) : 0;
    return prompt->adapter > 0 ||
           error_set(error, ERROR_DATA, "adapter %.80s is not one of adapters=%s: add it there, or leave the member out", name,
               b->options->adapters);
}

static bool take_record(void *context, JsonLine line, Error *error) {
    PromptBatch *b = context;
    json_t *record = line.value;
    array_append(b->prompts, b->count, (BatchPrompt){.batch = b, .record = record});
    BatchPrompt *prompt = &b->prompts[b->count - 1];
    const json_t *text = json_object_get(record, "prompt"), *ids = json_object_get(record, "tokens"),
                 *messages = json_object_get(record, "messages");
    if (!json_is_object(record) || json_is_string(text) + json_is_array(ids) + json_is_array(messages) != 1)
        return error_set(error, ERROR_DATA, "expected an object with one of prompt (a text), tokens (ids) and messages (a list)");
    for (size_t i = 0; i < sizeof result_names / sizeof *result_names; i++)
        if (json_object_get(record, result_names[i]))
            return error_set(error, ERROR_DATA, "the member %s would be replaced by a result: rename it", result_names[i]);
    if (!take_adapter(b, record, prompt, error)) return false;
    if (ids)
        return prompt_read_ids(ids, &prompt->tokens, error) &&
               (prompt->tokens.count > 0 || error_set(error, ERROR_DATA, "tokens is empty"));
    if (messages) return take_messages(b, messages, &prompt->tokens, error);
    if (strlen(json_string_value(text)) != json_string_length(text))
        return error_set(error, ERROR_DATA, "prompt contains a zero character (U+0000): remove it");
    return generation_read_prompt(json_string_value(text), b->text, &prompt->tokens, error);
}

static bool read_prompts(PromptBatch *b, Error *error) {
    return json_read_lines(b->path, PROMPTS_LIMIT, JSON_REJECT_DUPLICATES, take_record, b, error) &&
           (b->count > 0 || error_set(error, ERROR_DATA, "%s has no prompts", b->path));
}

/* -- Results ------------------------------------------------------------------------------------------------------- */

static bool batch_token(void *context, int index, const EngineToken *token) {
    BatchPrompt *prompt = context;
    BatchSample *sample = &prompt->samples[index];
    token_ids_append(&sample->ids, token->token);
    array_append(sample->log_probabilities, sample->count, token->log_probability);
    for (int64_t i = 0; i < prompt->batch->options->top_logprobs; i++)
        array_append(sample->top, sample->top_count, i < token->top_count ? token->top[i] : (EngineScore){.token = -1});
    prompt->batch->generated++;
    return prompt->batch->text->numbers || generated_text_add(&sample->text, &prompt->batch->stops, token->token);
}

static void batch_end(void *context, int index, EngineEnd finish) {
    BatchPrompt *prompt = context;
    generated_text_finish(&prompt->samples[index].text);
    prompt->samples[index].finish = finish;
    prompt->samples[index].ended = true;
    prompt->batch->ended++;
}

/* Returns a list for each token, with pairs of a token id and its log-probability. */
static json_t *top_lists(const PromptBatch *b, const BatchSample *sample) {
    json_t *lists = json_array();
    for (size_t i = 0; i < sample->ids.count; i++) {
        json_t *list = json_array();
        for (int64_t k = 0; k < b->options->top_logprobs; k++) {
            const EngineScore *score = &sample->top[(int64_t)i * b->options->top_logprobs + k];
            if (score->token >= 0) json_array_append_new(list, json_pack("[i f]", score->token, score->log_probability));
        }
        json_array_append_new(lists, list);
    }
    return lists;
}

static json_t *sample_record(const PromptBatch *b, const BatchPrompt *prompt, int64_t index) {
    const BatchSample *sample = &prompt->samples[index];
    json_t *record = json_copy(prompt->record);
    double sum = 0;
    for (size_t i = 0; i < sample->ids.count; i++) sum += sample->log_probabilities[i];
    json_object_set_new(record, "sample", json_integer(index));
    if (!b->text->numbers)
        json_object_set_new(record, "completion", json_stringn(sample->text.size ? sample->text.bytes : "", sample->text.size));
    json_object_set_new(record, "finish", json_string(sample->finish == ENGINE_LENGTH ? "length" : "stop"));
    json_object_set_new(record, "tokens_generated", json_integer((json_int_t)sample->ids.count));
    json_object_set_new(record, "logprob", json_real(sum));
    if (!b->options->ids && !b->text->numbers) return record;
    json_t *ids = json_array(), *log_probabilities = json_array();
    for (size_t i = 0; i < sample->ids.count; i++) {
        json_array_append_new(ids, json_integer(sample->ids.items[i]));
        json_array_append_new(log_probabilities, json_real(sample->log_probabilities[i]));
    }
    json_object_set_new(record, "ids", ids);
    json_object_set_new(record, "logprobs", log_probabilities);
    if (b->options->top_logprobs) json_object_set_new(record, "top_logprobs", top_lists(b, sample));
    return record;
}

/* Writes the samples that have ended, up to the first that has not. */
static bool write_ended(PromptBatch *b, Error *error) {
    size_t samples = (size_t)b->options->samples, all = b->count * samples;
    for (; b->written < all && b->prompts[b->written / samples].samples[b->written % samples].ended; b->written++) {
        json_auto_t *record = sample_record(b, &b->prompts[b->written / samples], (int64_t)(b->written % samples));
        SCOPED_FREE char *text = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(9));
        if (!text) memory_refused(0);
        SCOPED_FREE char *line = memory_format("%s\n", text);
        if (!*b->options->images.out) fputs(line, stdout);
        else if (!file_append(&b->out, line, (int64_t)strlen(line), error)) return false;
    }
    return model_text_flush(b->text, error);
}

static bool read_biases(PromptBatch *b, Error *error) {
    const char *text = b->options->logit_bias, *name;
    json_t *number;
    if (!*text) return true;
    json_auto_t *object = json_parse(text, strlen(text), 0, error);
    if (!json_is_object(object)) return error_set(error, ERROR_USAGE, "logit_bias=%s is not a JSON object of token ids with numbers", text);
    json_object_foreach(object, name, number) {
        EngineBias bias;
        if (!engine_bias(name, number, &bias, error)) return error_context(error, "logit_bias");
        array_append(b->biases, b->bias_count, bias);
    }
    return true;
}

static bool is_result_file(const char *path) { return file_begins(path, "{", 1); }

static bool check_results_file(const PromptBatch *b, Error *error) {
    const char *out = b->options->images.out;
    if (file_same(out, b->path)) return error_set(error, ERROR_USAGE, "out=%s is the file of prompts: choose another name", out);
    return file_check_overwrite(out, b->options->images.overwrite, is_result_file, "a file of JSON lines", error);
}

/* Replaces an old file, so it is called when generation can begin. */
static bool open_out(PromptBatch *b, Error *error) {
    const char *out = b->options->images.out;
    return !b->leads || !*out || ((!file_exists(out) || file_remove(out, error)) && file_open_append(&b->out, out, true, error));
}

/* -- Running ------------------------------------------------------------------------------------------------------- */

/* Returns the tokens that a prompt may get. */
static int64_t tokens_wanted(const PromptBatch *b, const Config *config, const BatchPrompt *prompt) {
    return int_min(b->options->tokens, config->model.context - (int64_t)prompt->tokens.count);
}

static bool check_rooms(const PromptBatch *b, const Config *config, Error *error) {
    if (!b->options->tokens) return error_set(error, ERROR_USAGE, "tokens=0 generates nothing: set tokens to at least 1");
    for (size_t i = 0; i < b->count; i++)
        if (tokens_wanted(b, config, &b->prompts[i]) < 1)
            return error_set(error, ERROR_USAGE,
                "prompt %zu of %s has %zu tokens and leaves no room in a context of %" PRId64 ": shorten it, or use a longer context",
                i + 1, b->path, b->prompts[i].tokens.count, config->model.context);
    return true;
}

/* Without penalties the engine needs no memory for them. */
static bool has_penalties(const PromptBatch *b) {
    const GenerationOptions *o = b->options;
    return o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0 || b->bias_count > 0;
}

static EngineSizes batch_engine_sizes(const PromptBatch *b, const Config *config) {
    EngineSizes sizes = {.slots = int_min(b->options->slots, (int64_t)b->count * b->options->samples),
        .limit = model_text_limit(b->text),
        .penalties = has_penalties(b),
        .top = b->options->top_logprobs,
        .adapters = adapter_set(&b->adapters)};
    for (size_t i = 0; i < b->count; i++) {
        int64_t rows = (int64_t)b->prompts[i].tokens.count + tokens_wanted(b, config, &b->prompts[i]);
        sizes.longest = int_max(sizes.longest, rows);
    }
    sizes.cache_rows = sizes.slots * sizes.longest;
    return sizes;
}

static bool submit_prompts(PromptBatch *b, Engine *engine, const Config *config, Error *error) {
    for (size_t i = 0; i < b->count; i++) {
        BatchPrompt *prompt = &b->prompts[i];
        const TokenIds *ends = &b->adapters.ends[prompt->adapter];
        prompt->samples = memory_allocate((size_t)b->options->samples * sizeof *prompt->samples);
        for (int64_t s = 0; s < b->options->samples; s++) prompt->samples[s] = (BatchSample){.text = generated_text(b->text->tokenizer)};
        const EngineRequest request = {.prompt = prompt->tokens.items,
            .prompt_count = (int64_t)prompt->tokens.count,
            .tokens = tokens_wanted(b, config, prompt),
            .samples = (int)b->options->samples,
            .sampling = generation_sampling(b->options),
            .penalties = {.repetition = b->options->repetition_penalty,
                .presence = b->options->presence_penalty,
                .frequency = b->options->frequency_penalty,
                .biases = b->biases,
                .bias_count = b->bias_count},
            .top = b->options->top_logprobs,
            .adapter = prompt->adapter,
            .number = (uint64_t)i << 16,
            .ends = ends->items,
            .end_count = (int64_t)ends->count,
            .token = batch_token,
            .end = batch_end,
            .context = prompt};
        if (!engine_submit(engine, &request, error)) return error_context(error, "prompt %zu of %s", i + 1, b->path);
    }
    return true;
}

static bool run_prompts(PromptBatch *b, Engine *engine, Error *error) {
    Progress progress = progress_start("generating", "samples", (int64_t)b->count * b->options->samples);
    double begin = log_seconds();
    while (engine_busy(engine)) {
        if (!engine_step(engine, error)) return false;
        if (!b->leads) continue;
        if (!write_ended(b, error)) return false;
        progress_made(&progress, "tokens", b->generated);
        progress_update(&progress, b->ended);
    }
    if (!b->leads) return true;
    progress_finish(&progress);
    EngineCounts counts = engine_counts(engine);
    double seconds = fmax(log_seconds() - begin, 1e-9);
    log_info("%zu prompt%s, %" PRId64 " tokens read, %" PRId64 " generated: %.1f tokens/s, %.1f sequences at once", b->count,
        plural((int64_t)b->count), counts.prompt_tokens, counts.tokens, (double)counts.tokens / seconds,
        (double)counts.sequences / (double)int_max(counts.steps, 1));
    return true;
}

bool generate_batch(
    Inference *inference, const char *const words[2], Config *config, const GenerationOptions *options, ModelText *text, Error *error) {
    const char *folder = words[0], *path = words[1];
    SCOPED(batch_close) PromptBatch b = {.options = options, .folder = folder, .path = path, .config = config, .text = text};
    b.leads = inference_leads(inference);
    const AdapterBase base = {folder, config, text->tokenizer, &text->ends};
    generation_limit_context(config, options->context);
    if (*options->stop && text->numbers) return error_set(error, ERROR_USAGE, "stop= needs the tokenizer: remove text=false");
    if (options->top_logprobs && !options->ids && !text->numbers)
        return error_set(error, ERROR_USAGE, "top_logprobs=%" PRId64 " is listed beside ids: set ids=true", options->top_logprobs);
    if (!generation_read_stops(options->stop, &b.stops, error) || !read_biases(&b, error) ||
        !adapter_set_open(&b.adapters, options->adapters, &base, error) || !read_prompts(&b, error) || !check_rooms(&b, config, error) ||
        !check_results_file(&b, error))
        return false;
    Engine *engine = generation_open_engine(inference, folder, config, options, batch_engine_sizes(&b, config), error);
    bool done = engine && generation_load_adapters(inference, config, &b.adapters, engine, error) &&
                submit_prompts(&b, engine, config, error) && open_out(&b, error) && run_prompts(&b, engine, error);
    engine_free(engine);
    return done;
}
