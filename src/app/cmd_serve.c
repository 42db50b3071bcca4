/* `smelt serve MODEL [key=value ...]`: answers requests in the form of OpenAI over HTTP, many at a
 * time, until it is interrupted. If several ranks divide the model, rank 0 answers, and the others
 * repeat the steps of its engine. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/command.h"
#include "app/generation.h"
#include "app/process.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/byte_tokenizer.h"
#include "data/pack.h"
#include "run/source.h"
#include "serve/serve.h"

typedef struct ServeOptions {
    const char *host, *name, *template, *adapters;
    int64_t port, slots, queue, context, body, threads;
    LayoutConfig layout;
    Fp8Config fp8;
    bool exact;
    int device, precision;
} ServeOptions;

#define FIELD(name) offsetof(ServeOptions, name)
static const Option rows[] = {
    STRING_OPTION(host, "127.0.0.1", "", "address to listen on; any other than this machine's own needs a key in SMELT_API_KEY"),
    INT_OPTION(port, "8000", 0, 65535, "", "port to listen on; 0: any free port"),
    STRING_OPTION(name, "", "", "name of the model in requests; empty: the last part of MODEL"),
    STRING_OPTION(template, "", "", "file with the chat template, or chatml; empty: the model's own", .path = true),
    STRING_OPTION(adapters, "", "", ADAPTERS_HELP),
    INT_OPTION(slots, "64", 1, ENGINE_MOST_SLOTS, "sequences", "sequences that are generated at once"),
    INT_OPTION(queue, "256", 1, 65536, "samples", "samples that wait, run, or have not been fetched; further requests get 429"),
    INT_OPTION(context, "0", 0, 1 << 24, "tokens",
        "maximum positions of a sequence, including the prompt, which determines the memory of the KV cache; 0: the model's"),
    INT_OPTION(body, "32", 1, 1024, "MiB", "maximum size of a request; at most eight times as much arrives at once"),
    INT_OPTION(layout.tp, "1", 1, 1 << 20, "ranks", "ranks that shard weights, and the KV cache by heads, of a model too large for one"),
    GENERATION_MACHINE,
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

typedef struct ServeParts {
    ModelText text;
    ModelChat chat;
    char *name;
    NamedAdapters adapters;
    const char **adapter_names;
    ServeModel model;
    ServeSettings settings;
    Server *server;
    Engine *engine;
} ServeParts;

static void parts_close(ServeParts *parts) {
    server_close(parts->server);
    engine_free(parts->engine);
    model_chat_close(&parts->chat);
    model_text_close(&parts->text);
    adapter_set_close(&parts->adapters);
    free(parts->adapter_names);
    free(parts->name);
}

/* Opens tokenizer and template. */
static bool open_serve_text(ServeParts *parts, const char *folder, const Config *config, const ServeOptions *options, Error *error) {
    ServeModel *model = &parts->model;
    if (!model_text_open(&parts->text, folder, config, error) ||
        !model_chat_open(&parts->chat, &parts->text, folder, config, &(ChatOptions){.template = options->template}, error))
        return false;
    model->tokenizer = parts->text.tokenizer;
    model->encoder = parts->text.encoder;
    model->chat = chat_has_template(parts->chat.chat) ? parts->chat.encoder : NULL;
    return true;
}

/* Requests name an adapter as their `model`, so its name must differ from the model's own. */
static bool open_adapters(ServeParts *parts, const char *folder, const Config *config, const ServeOptions *options, Error *error) {
    NamedAdapters *adapters = &parts->adapters;
    const AdapterBase base = {folder, config, parts->text.tokenizer, &parts->text.ends};
    if (!adapter_set_open(adapters, options->adapters, &base, error)) return false;
    if (adapter_set_find(adapters, parts->name))
        return error_set(
            error, ERROR_USAGE, "adapters=: %s is the name of the model itself: rename the adapter, or set name=", parts->name);
    parts->adapter_names = memory_allocate((size_t)(adapters->count + 1) * sizeof *parts->adapter_names);
    for (int i = 0; i < adapters->count; i++) parts->adapter_names[i] = adapters->items[i].name;
    parts->model.adapters = parts->adapter_names;
    parts->model.adapter_count = adapters->count;
    parts->model.ends = adapters->ends;
    return true;
}

/* Returns the last part of a path, as UTF-8, for the caller to free. */
static char *model_name(const char *folder) {
    size_t length = path_length(folder), start = length, size;
    while (start > 0 && folder[start - 1] != '/') start--;
    return utf8_replace(folder + start, length - start, &size);
}

/* Rank 0 answers until a stop is requested; the other ranks follow it. They ignore signals, and end when
 * rank 0 dismisses them. */
static bool run_server(Inference *inference, ServeParts *parts, StopRequest *stop, Error *error) {
    stop->heeded = 1;
    if (!comm_barrier(inference->comm, "start of the server", error)) return false;
    if (!inference_leads(inference)) return engine_follow(parts->engine, inference->comm, error);
    engine_lead(parts->engine, inference->comm);
    printf("%s answers at %s%s; Ctrl-C ends\n", parts->name, server_url(parts->server),
        *parts->settings.key ? ", with the key of SMELT_API_KEY" : "");
    fflush(stdout);
    return server_run(parts->server, parts->engine, stop, error) && engine_dismiss(parts->engine, error);
}

/* Only rank 0 listens. */
static bool listen_for_requests(const Inference *inference, ServeParts *parts, Error *error) {
    return !inference_leads(inference) || (parts->server = server_open(&parts->model, &parts->settings, error));
}

static bool serve_model(Inference *inference, Invocation *invocation, StopRequest *stop, ServeParts *parts, Error *error) {
    const char *folder = invocation->words[0], *key = getenv("SMELT_API_KEY");
    const ServeOptions *options = invocation->options;
    GenerationOptions machine = {
        .device = options->device, .precision = options->precision, .threads = options->threads, .layout = options->layout};
    Config config;
    parts->name = *options->name ? memory_copy_string(options->name) : model_name(folder);
    parts->model.name = parts->name;
    parts->settings = (ServeSettings){.host = options->host,
        .port = (int)options->port,
        .key = key ? key : "",
        .body_bytes = options->body << 20,
        .queue = options->queue};
    if (!source_read_config(folder, &config, &invocation->strings, error) || !inference_check_text(&config, error) ||
        !inference_choose_arithmetic(&config, &options->fp8, options->exact, error))
        return false;
    generation_limit_context(&config, options->context);
    if (!open_serve_text(parts, folder, &config, options, error) || !open_adapters(parts, folder, &config, options, error) ||
        !listen_for_requests(inference, parts, error))
        return false;
    const EngineSizes sizes = {.slots = options->slots,
        .limit = model_text_limit(&parts->text),
        .scores = true,
        .penalties = true,
        .top = ENGINE_MOST_TOP,
        .adapters = adapter_set(&parts->adapters)};
    parts->engine = generation_open_engine(inference, folder, &config, &machine, sizes, error);
    return parts->engine && generation_load_adapters(inference, &config, &parts->adapters, parts->engine, error) &&
           run_server(inference, parts, stop, error);
}

static bool run_serve(Invocation *invocation, Error *error) {
    static StopRequest stop;
    Inference inference = {0};
    ServeParts parts = {0};
    process_catch_stop(&stop, false);
    bool done = inference_join(&inference, error) && serve_model(&inference, invocation, &stop, &parts, error);
    parts_close(&parts);
    inference_close(&inference, done ? NULL : error);
    return done;
}

const Command command_serve = {
    .name = "serve",
    .summary = "answer requests over HTTP in the form of OpenAI",
    .words = "MODEL",
    .explanation =
        "Serves a run's checkpoint, a Hugging Face folder, a GGUF file or PEFT adapters at http://127.0.0.1:8000/v1, many requests at "
        "once: /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics. docs/generate.md lists the fields of requests.\n"
        "If the environment has SMELT_API_KEY, requests need this key; host= with an address that other machines reach requires it.\n"
        "smelt launch -n 2 -- serve MODEL layout.tp=2 divides a model over two GPUs.\n",
    .table = &table,
    .options_size = sizeof(ServeOptions),
    .ranks = true,
    .run = run_serve,
};
