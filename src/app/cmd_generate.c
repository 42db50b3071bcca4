/* `smelt generate MODEL "prompt" [key=value ...]`: continues a prompt, which is text for the
 * model's own tokenizer or the byte tokenizer, or token numbers. Text goes to stdout as it is
 * generated, the rate to stderr. A file of prompts is generated many at a time (generate_batch.c).
 * An image model takes a file of encodings instead of a prompt (generate_images.c). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/command.h"
#include "app/generation.h"
#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "token/tokenizer.h"
#include "run/generation_settings.h"
#include "run/source.h"

#define FIELD(name) offsetof(GenerationOptions, name)
static const Option rows[] = {
    INT_OPTION(tokens, "200", 0, 1e9, "tokens", "maximum tokens to generate; the end of the document or of the context ends earlier"),
    GENERATION_SAMPLING("1"),
    BOOL_OPTION(text, "true", "false: prompt and output are token ids, and the folder's eos_token_id ends the output"),
    INT_OPTION(context, "0", 0, 1 << 24, "tokens",
        "maximum positions, including the prompt, which determines the memory of the KV cache; 0: the model's"),
    BOOL_OPTION(cache, "true", "false: recompute the whole sequence for each token, to check the KV cache"),
    INT_OPTION(layout.cp, "0", 0, 1 << 20, "ranks", "ranks that shard the KV cache by position; 0: the started ranks divided by layout.tp"),
    INT_OPTION(layout.tp, "1", 1, 1 << 20, "ranks", "ranks that shard weights, and the KV cache by heads, of a model too large for one"),
    GENERATION_MACHINE,
    INT_OPTION(samples, "1", 1, 65536, "samples", "prompts in a file: samples of each prompt"),
    INT_OPTION(slots, "64", 1, ENGINE_MOST_SLOTS, "sequences", "prompts in a file: sequences that are generated at once"),
    BOOL_OPTION(ids, "false", "prompts in a file: write token ids and their log-probabilities too"),
    REAL_OPTION(min_p, "0", 0, 1, "", "prompts in a file: then drop tokens below this share of the largest probability"),
    REAL_OPTION(repetition_penalty, "1", 0.01, 100, "",
        "prompts in a file: divides positive logits of tokens of prompt and sample, and multiplies others"),
    REAL_OPTION(presence_penalty, "0", -2, 2, "", "prompts in a file: is subtracted from the logits of tokens of the sample"),
    REAL_OPTION(frequency_penalty, "0", -2, 2, "", "prompts in a file: the same for each time that the sample has the token"),
    STRING_OPTION(
        logit_bias, "", "", "prompts in a file: JSON object of token ids with numbers from -100 to 100 that are added to their logits"),
    INT_OPTION(
        top_logprobs, "0", 0, ENGINE_MOST_TOP, "tokens", "prompts in a file: with ids=true, likeliest tokens to list for each token"),
    STRING_OPTION(stop, "", "", "prompts in a file: a text, or a JSON list of up to 4 texts; a sample ends before the first of them"),
    STRING_OPTION(adapters, "", "", "prompts in a file: " ADAPTERS_HELP),
    STRING_OPTION(template, "", "", "prompts in a file: file with the chat template, or chatml; empty: the model's own", .path = true),
    {"out", OPTION_STRING, FIELD(images.out), "", 0, 0, NULL, "",
        "prompts in a file: JSON lines with the texts; images: safetensors file for the latents"},
    {"png", OPTION_STRING, FIELD(images.png), "", 0, 0, NULL, "",
        "images: PNG file with all images side by side; latents of one or three channels are pixels, others need vae"},
    {"vae", OPTION_STRING, FIELD(images.vae), "", 0, 0, NULL, "",
        "images: folder of the AutoencoderKL that decodes the latents, on the CPU"},
    {"overwrite", OPTION_BOOL, FIELD(images.overwrite), "false", 0, 0, NULL, "", "replace the files out and png"},
    {"steps", OPTION_INT, FIELD(images.steps), "28", 1, 100000, NULL, "steps", "images: Euler steps from noise to image"},
    {"guidance", OPTION_REAL, FIELD(images.guidance), "3.5", 0, 1000, NULL, "", "images: guidance scale, for models that embed it"},
    {"shift", OPTION_REAL, FIELD(images.shift), "0", 0, 1000, NULL, "",
        "images: shift of the times towards noise; 1: none, as for FLUX.1-schnell; 0: by the number of tokens, as for FLUX.1-dev"},
    {"height", OPTION_INT, FIELD(images.height), "0", 0, 2 * IMAGE_GRID, NULL, "latents",
        "images: height in latents, of 8 pixels each for FLUX.1; 0: as in the encodings"},
    {"width", OPTION_INT, FIELD(images.width), "0", 0, 2 * IMAGE_GRID, NULL, "latents", "images: width in latents; 0: as in the encodings"},
};
#undef FIELD

static const OptionTable table = OPTION_TABLE(rows);

/* -- The prompt ---------------------------------------------------------------------------------------------------- */

/* Returns the prompt, or with "-" standard input without a final newline; the caller frees. */
static char *take_prompt_word(const char *word, Error *error) {
    char *text = NULL, *prompt = NULL;
    size_t size = 0;
    if (strcmp(word, "-")) return memory_copy_string(word);
    ssize_t length = getdelim(&text, &size, '\0', stdin);
    bool zero = !ferror(stdin) && !feof(stdin);
    if (zero || ferror(stdin))
        error_set(error, ERROR_DATA, "cannot read the prompt from standard input: %s", zero ? "it contains a zero byte" : strerror(errno));
    else if (length <= 0) prompt = memory_copy_string("");
    else prompt = memory_format("%.*s", (int)length - (text[length - 1] == '\n'), text);
    free(text);
    return prompt;
}

/* -- Continuing the prompt ----------------------------------------------------------------------------------------- */

static bool feed_prompt(Generator *generator, const TokenIds *prompt, ModelText *text, Error *error) {
    if (!generator_feed(generator, prompt->items, (int64_t)prompt->count, error)) return error_context(error, "the prompt");
    for (size_t i = 0; i < prompt->count; i++) model_text_put(text, prompt->items[i], i == 0);
    return model_text_flush(text, error);
}

/* Always sets *generated; *full: there was no room for more. */
static bool continue_text(
    Generator *generator, const GenerationOptions *options, ModelText *text, int64_t *generated, bool *full, Error *error) {
    Sampling sampling = generation_sampling(options);
    for (*generated = 0; *generated < options->tokens && generator_room(generator) > 0; (*generated)++) {
        int32_t token;
        if (!generator_next(generator, &sampling, model_text_limit(text), &token, error)) return false;
        if (model_text_stops(text, token)) return true;
        model_text_put(text, token, false);
        if (!model_text_flush(text, error)) return false;
    }
    *full = *generated < options->tokens;
    return true;
}

static bool generate(Generator *generator, const TokenIds *prompt, const GenerationOptions *options, ModelText *text, Error *error) {
    int64_t generated = 0;
    bool full = false;
    double begin = log_seconds();
    if (!feed_prompt(generator, prompt, text, error) || !generator_logits(generator, error)) return false;
    double first = log_seconds();
    bool good = continue_text(generator, options, text, &generated, &full, error);
    double end = log_seconds();
    model_text_end(text);
    if (!good || !model_text_flush(text, error)) return false;
    if (full) log_info("stopped: the context of the model is full");
    log_info("prompt: %zu token%s, %.1f tokens/s; generated: %" PRId64 " token%s, %.1f tokens/s", prompt->count,
        plural((int64_t)prompt->count), prompt->count / fmax(first - begin, 1e-9), generated, plural(generated),
        generated / fmax(end - first, 1e-9));
    return true;
}

static bool run_model(Inference *inference, const char *folder, Config *config, const GenerationOptions *options, const TokenIds *prompt,
    ModelText *text, Error *error) {
    Generator *generator = generation_open(inference, folder, config, options, error);
    bool done = generator && generate(generator, prompt, options, text, error);
    generator_free(generator);
    return done;
}

/* The first rank's result of reading the prompt, for all ranks. */
typedef struct PromptRead {
    int64_t count;
    Error error;
} PromptRead;

/* Reads the tokens of the prompt on the first rank, for all ranks, so that they fail together. */
static bool take_prompt_tokens(const char *word, const ModelText *text, Comm *comm, TokenIds *prompt, Error *error) {
    PromptRead result = {0};
    if (comm_rank(comm) == 0) {
        SCOPED_FREE char *words = take_prompt_word(word, &result.error);
        if (words && generation_read_prompt(words, text, prompt, &result.error)) result.count = (int64_t)prompt->count;
    }
    if (!comm_host_broadcast(comm, "prompt length", &result, sizeof result, COMM_U8, 0, error)) return false;
    if (!result.count) {
        *error = result.error;
        return false;
    }
    while ((int64_t)prompt->count < result.count) token_ids_append(prompt, 0);
    return comm_host_broadcast(comm, "prompt", prompt->items, result.count * (int64_t)sizeof *prompt->items, COMM_U8, 0, error);
}

static bool check_idle_options(const GenerationOptions *options, const ModelConfig *model, bool file, Error *error) {
    static const char *const of_text[] = {"tokens", "temperature", "top_k", "top_p", "text", "context", "cache", "layout.cp", "layout.tp",
        "samples", "slots", "ids", "template", "stop", "adapters", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "logit_bias", "top_logprobs", NULL};
    static const char *const of_images[] = {"guidance", "png", "vae", "steps", "shift", "height", "width", NULL};
    static const char *const of_files[] = {"samples", "slots", "ids", "template", "stop", "adapters", "min_p", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "logit_bias", "top_logprobs", "out", "overwrite", NULL};
    static const char *const alone[] = {"cache", "layout.cp", NULL};
    static const char *const of_guidance[] = {"guidance", NULL};
    if (!model_makes_images(model))
        return command_refuse_idle(&table, options, of_images, "only image models use it, but this model makes text", error) &&
               (file ? command_refuse_idle(&table, options, alone, "it has no effect with a file of prompts", error)
                     : command_refuse_idle(&table, options, of_files, "it needs a file of prompts, PROMPTS.jsonl", error));
    return command_refuse_idle(&table, options, of_text, "only text models use it, but this model makes images", error) &&
           (model->guidance || command_refuse_idle(&table, options, of_guidance, "this model has no guidance embedding", error));
}

/* Returns whether the prompt is a file with this end of its name. */
static bool is_file_named(const char *prompt, const char *end) {
    size_t length = strlen(prompt), tail = strlen(end);
    return length >= tail && !strcmp(prompt + length - tail, end) && file_exists(prompt);
}

/* Refuses a file of encodings as a prompt, because a path is not a text to continue. */
static bool check_prompt_option(const char *prompt, const char *folder, Error *error) {
    if (!is_file_named(prompt, ".safetensors")) return true;
    return error_set(error, ERROR_USAGE,
        "%s is a file of encodings, but %s makes text: give a text (to read the prompt from standard input, give -)", prompt, folder);
}

/* A text that is only continued is not what a model for conversations has learned. */
static void point_to_chat(const char *folder, const Config *config) {
    SCOPED_FREE char *tokenizer = source_tokenizer(folder, config);
    Error ignored = {0};
    json_auto_t *side = tokenizer && *tokenizer ? tokenizer_config(tokenizer, &ignored) : NULL;
    if (json_object_get(side, "chat_template"))
        log_info("the model has a chat template, and the prompt was not put into it: smelt chat %s does so", folder);
}

static bool generate_rank(Inference *inference, Invocation *invocation, Error *error) {
    const GenerationOptions *options = invocation->options;
    const char *folder = invocation->words[0];
    Config config;
    SCOPED(model_text_close)
    ModelText text = {.numbers = !options->text, .printed = inference_leads(inference), .terminal = isatty(STDOUT_FILENO)};
    SCOPED(token_ids_free) TokenIds prompt = {0};
    if (!source_read_config(folder, &config, &invocation->strings, error)) return false;
    if (!inference_choose_arithmetic(&config, &options->fp8, options->exact, error)) return false;
    bool file = is_file_named(invocation->words[1], ".jsonl");
    if (!check_idle_options(options, &config.model, file, error)) return false;
    if (model_makes_images(&config.model)) return generate_images(inference, folder, invocation->words[1], &config, options, error);
    if (!check_prompt_option(invocation->words[1], folder, error)) return false;
    if (text.numbers ? !generation_end_tokens(folder, &config, NULL, &text.ends, error) : !model_text_open(&text, folder, &config, error))
        return false;
    if (file) return generate_batch(inference, invocation->words, &config, options, &text, error);
    if (!take_prompt_tokens(invocation->words[1], &text, inference->comm, &prompt, error) ||
        !run_model(inference, folder, &config, options, &prompt, &text, error))
        return false;
    if (inference_leads(inference) && options->text) point_to_chat(folder, &config);
    return true;
}

static bool run_generate(Invocation *invocation, Error *error) {
    Inference inference = {0};
    bool done = inference_join(&inference, error) && generate_rank(&inference, invocation, error);
    inference_close(&inference, done ? NULL : error);
    return done;
}

const Command command_generate = {
    .name = "generate",
    .summary = "continue a prompt, or make images",
    .words = "MODEL \"prompt\"",
    .explanation =
        "Continues the prompt with a run's newest checkpoint (RUN), another one (RUN@STEP, RUN@best, or its folder), a\n"
        "Hugging Face folder, or PEFT adapters (ADAPTER, ADAPTER@BASE). The prompt and the output go\n"
        "through the model's tokenizer. The prompt - means standard input. If a prompt contains = or begins with --, put -- before it.\n"
        "\n"
        "A file of prompts, PROMPTS.jsonl, is generated many sequences at once. A line is an object with prompt, tokens or messages;\n"
        "its other members are copied. out= gets a line for each sample: the object with sample, completion, finish, tokens and\n"
        "logprob (see docs/generate.md).\n"
        "\n"
        "smelt launch -n 2 -- generate MODEL \"prompt\" shards the KV cache of a long context over two processes with a GPU each; see "
        "docs/parallel.md.\n"
        "\n"
        "An image model (flux) takes a file of encodings instead of a prompt, and makes an image for each text in it. It uses the options "
        "from out on; see docs/flux.md.\n",
    .hint = "if a prompt contains = or begins with --, put -- before it",
    .table = &table,
    .options_size = sizeof(GenerationOptions),
    .ranks = true,
    .run = run_generate,
};
