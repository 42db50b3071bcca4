/* `smelt convert IN OUT [key=value ...]`: writes the model of a run, a model folder, a GGUF file or
 * a file of llm.c as a Hugging Face folder in the current layout, as a GGUF file, or as a file of
 * llm.c. From a configuration file it writes the model with random weights. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "token/tokenizer.h"
#include "formats/llmc.h"
#include "run/corpus.h"
#include "run/generation_settings.h"
#include "run/run.h"
#include "run/source.h"
#include "session/adapter.h"
#include "session/grow.h"
#include "session/weights.h"

typedef enum ConvertType { CONVERT_SAME, CONVERT_BF16, CONVERT_FP32, CONVERT_FP16, CONVERT_Q8_0, CONVERT_FP8, CONVERT_MXFP4 } ConvertType;
typedef enum ConvertTokenizer { TOKENIZER_OWN, TOKENIZER_NONE } ConvertTokenizer;
typedef struct ConvertOptions {
    int dtype, tokenizer;
    int64_t shard_bytes;
    bool overwrite, adapter, mtp;
    struct { const char *add; } tokens;
} ConvertOptions;

#define FIELD(name) offsetof(ConvertOptions, name)
static const Option rows[] = {
    CHOICE_OPTION(dtype, "same", "same|bf16|fp32|fp16|q8_0|fp8|mxfp4",
        "dtype of the tensors; same: as in a model folder, bf16 for bf16 runs; fp16 and q8_0: GGUF files; fp8: a folder for vLLM and "
        "transformers with FP8 linear layers, the rest as with same; mxfp4: a folder of gpt_oss with experts in MXFP4, the rest as with "
        "same"),
    CHOICE_OPTION(tokenizer, "own", "own|none", "write the model's tokenizer to the folder or GGUF file; none: omit it"),
    INT_OPTION(shard_bytes, "5G", 1, 1e15, "bytes", "maximum bytes of tensors per file of a folder, unless one tensor is larger"),
    BOOL_OPTION(overwrite, "false", "replace a folder written by convert, or a file of the same format"),
    STRING_OPTION(tokens.add, "", "",
        "comma-separated new special tokens: the folder OUT gets them in its tokenizer, with rows that are the mean of the other rows"),
    BOOL_OPTION(mtp, "true", "write the model's layer for multi-token prediction, if it has one; false: omit it"),
    BOOL_OPTION(adapter, "false", "write the adapters of a run with lora.rank as a PEFT folder; false: merge them into the model"),
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

typedef enum OutKind { OUT_FOLDER, OUT_LLMC, OUT_GGUF } OutKind;
static OutKind out_kind(const char *out) {
    if (strlen(out) > 4 && ends_with(out, ".bin")) return OUT_LLMC;
    return strlen(out) > 5 && ends_with(out, ".gguf") ? OUT_GGUF : OUT_FOLDER;
}

/* Checks that the kind of file supports the model and the type. */
static bool check_out(const char *out, const Config *config, const ConvertOptions *options, Error *error) {
    static const char *const of_folders[] = {"shard_bytes", NULL};
    OutKind kind = out_kind(out);
    int dtype = options->dtype;
    if (kind != OUT_GGUF && (dtype == CONVERT_FP16 || dtype == CONVERT_Q8_0))
        return error_set(
            error, ERROR_USAGE, "dtype=%s is only for GGUF files: set an OUT that ends in .gguf", dtype == CONVERT_FP16 ? "fp16" : "q8_0");
    if (kind != OUT_FOLDER && (dtype == CONVERT_FP8 || dtype == CONVERT_MXFP4))
        return error_set(error, ERROR_USAGE,
            "dtype=%s is only for Hugging Face folders: set dtype=same, or an OUT that does not end in .gguf or .bin",
            dtype == CONVERT_FP8 ? "fp8" : "mxfp4");
    if (kind != OUT_FOLDER && !command_refuse_idle(&table, options, of_folders, "OUT is a single file with all tensors", error))
        return false;
    if (dtype == CONVERT_FP8 && !hf_check_fp8(&config->model, error)) return false;
    if (dtype == CONVERT_MXFP4 && !hf_check_mxfp4(&config->model, error)) return false;
    return kind == OUT_LLMC || (kind == OUT_FOLDER ? hf_check : gguf_check)(&config->model, error);
}

static bool leave_prediction_out(const char *in, Config *config, Error *error) {
    if (source_is_run(in))
        return error_set(
            error, ERROR_USAGE, "mtp=false omits a layer of a model folder, but %s is a run: convert it to a folder first", in);
    if (!config->model.mtp)
        return error_set(error, ERROR_USAGE, "mtp=false: smelt found no layer for multi-token prediction in %s: remove the option", in);
    config->model.mtp = 0;
    return true;
}

/* Refuses to replace an input, even with overwrite=true. A run with adapters, and PEFT's folders,
 * also need their base afterwards. */
static bool check_inputs(const char *in, const char *out, const Config *config, Error *error) {
    SCOPED(run_point_free) RunPoint point = run_point(in);
    SCOPED_FREE char *adapter = adapter_folder(in);
    bool read = file_same(out, point.run) || file_same(out, adapter), base = config->lora.rank && file_same(out, config->init);
    return !(read || base) || error_set(error, ERROR_USAGE, "%s is %s and would be replaced: choose another OUT", out,
                                  read ? "the input" : "the base of the input adapters");
}

static const GgufType *gguf_type_of(int dtype, Precision precision) {
    static const char *const names[] = {[CONVERT_BF16] = "BF16", [CONVERT_FP32] = "F32", [CONVERT_FP16] = "F16", [CONVERT_Q8_0] = "Q8_0"};
    if (dtype == CONVERT_SAME) dtype = precision == PRECISION_BF16 ? CONVERT_BF16 : CONVERT_FP32;
    return gguf_type_named(names[dtype]);
}

static bool write_model(const HfExport *export, const char *out, const ConvertOptions *options, Error *error) {
    switch (out_kind(out)) {
    case OUT_LLMC: return llmc_write(out, export->config, export->precision, export->master, options->overwrite, error);
    case OUT_GGUF: return hf_write_gguf(export, gguf_type_of(options->dtype, export->precision), out, options->overwrite, error);
    case OUT_FOLDER: break;
    }
    return hf_write(export, out, options->overwrite, error);
}

/* Converts folder to folder, tensor by tensor, at any model size. */
static bool write_from_folder(
    const char *in, const char *out, const Graph *graph, HfExport export, const ConvertOptions *options, Error *error) {
    HfReader *reader = hf_reader_open(in, export.config, graph, error);
    export.reader = reader;
    bool written = reader && write_model(&export, out, options, error);
    hf_reader_close(reader);
    if (written) log_info("wrote the model of %s to %s", in, out);
    return written;
}

/* Writes a base with merged adapters, whose weights are export.master. Compares them with
 * adapters and base before and after writing. */
static bool write_merged(const char *in, const char *out, const Config *config, const Graph *graph, const HfExport *export,
    const ConvertOptions *options, Error *error) {
    SCOPED(adapter_check_end) MergedCheck check = {0};
    void *master = (void *)export->master;
    return adapter_check_start(&check, in, config, error) && adapter_check_merged(&check, in, config, master, error) &&
           write_model(export, out, options, error) && adapter_check_written(&check, out, config, graph, master, error);
}

static bool write_from_memory(const char *in, const char *out, const Config *config, const Graph *graph, HfExport export,
    const ConvertOptions *options, Error *error) {
    size_t bytes = (size_t)graph->parameter_bytes;
    if (!memory_check((int64_t)bytes, "the model", "use a machine with more memory", error)) return false;
    float *master = memory_map(bytes, error);
    int64_t step;
    export.master = master;
    bool written =
        master && weights_load(in, config, graph, master, &step, error) &&
        (config->lora.rank ? write_merged(in, out, config, graph, &export, options, error) : write_model(&export, out, options, error));
    memory_unmap(master, bytes);
    if (written && step) log_info("wrote step %" PRId64 " of %s to %s", step, in, out);
    if (written && !step) log_info("wrote the model of %s to %s", in, out);
    return written;
}

/* Writes the model with rows for new tokens, and the tokenizer with these tokens. */
static bool write_grown(
    const char *in, const char *out, const Config *config, HfExport export, const ConvertOptions *options, Error *error) {
    if (out_kind(out) != OUT_FOLDER)
        return error_set(error, ERROR_USAGE, "tokens.add writes only folders: write a folder first, then convert it to %s", out);
    if (export.bytes)
        return error_set(error, ERROR_USAGE,
            "tokens.add=%s: the tokenizer of %s is bytes, which has no room for other tokens: train a model with a tokenizer (smelt data "
            "train-tokenizer TEXT FILE, then data.tokenizer=FILE) and add tokens to it",
            options->tokens.add, in);
    if (!export.source)
        return error_set(error, ERROR_USAGE,
            "tokens.add=%s needs a tokenizer, but %s has none: use a model folder, a GGUF file or a run, without tokenizer=none",
            options->tokens.add, in);
    Tokenizer *tokenizer = tokenizer_open(export.source, error);
    int32_t added = 0;
    bool good = tokenizer && tokenizer_check_new(tokenizer, options->tokens.add, &added, error);
    export.first_new = tokenizer ? tokenizer_vocabulary(tokenizer) : 0;
    tokenizer_free(tokenizer);
    if (!good) return error_context(error, "tokens.add");
    ModelConfig grown = config->model;
    VocabularyGrowth growth = vocabulary_growth(grown.vocabulary, export.first_new, added);
    grown.vocabulary = growth.grown_rows;
    SCOPED(model_free) Model model = model_describe(&grown, NULL, export.precision);
    size_t bytes = (size_t)model.graph->parameter_bytes;
    if (!memory_check(2 * (int64_t)bytes, "the model before and after", "use a machine with more memory", error)) return false;
    float *master = memory_map(bytes, error);
    export.config = &grown;
    export.master = master;
    export.keep = false;
    export.new_tokens = options->tokens.add;
    good = master && vocabulary_grow(in, config, &growth, model.graph, master, error) && hf_write(&export, out, options->overwrite, error);
    memory_unmap(master, bytes);
    if (good)
        log_info("%s has %d new tokens, starting at id %d, and %" PRId64 " rows (%s: %" PRId64
                 "). Set lora.tokens=%d-%d to train the new rows together with adapters",
            out, added, export.first_new, growth.grown_rows, in, growth.rows, export.first_new, export.first_new + added - 1);
    return good;
}

/* Returns the token members of config.json: those of `generation`, and eos_token, the text of
 * the token that ends documents, if it is valid UTF-8. */
static json_t *describe_tokens(const json_t *generation, const Tokenizer *tokenizer) {
    static const char *const names[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    json_t *tokens = json_object();
    for (int i = 0; i < 3; i++)
        if (json_object_get(generation, names[i])) json_object_set(tokens, names[i], json_object_get(generation, names[i]));
    int32_t id = tokenizer ? tokenizer_end_of_text(tokenizer) : -1;
    size_t length;
    if (id < 0) return tokens;
    TokenizerDecoder decoder = tokenizer_decoder(tokenizer, false);
    const char *text = tokenizer_decode(&decoder, id, &length);
    json_object_set_new(tokens, "eos_token", json_stringn(text, length));
    return tokens;
}

/* The parts of a run's model beside its weights. */
typedef struct RunTokenizer {
    bool bytes;
    char *folder;                /* of the tokenizer's files; NULL with `bytes` */
    json_t *generation, *origin; /* generation_settings, describe_tokens; or NULL */
} RunTokenizer;

static void run_tokenizer_free(RunTokenizer *tokenizer) {
    free(tokenizer->folder);
    json_decref(tokenizer->generation);
    json_decref(tokenizer->origin);
}

/* The files of a tokenizer do not record data.bos. */
static void name_other_beginning_than_trained(const char *run, const Config *config, const Tokenizer *tokenizer) {
    const bool begins = config->data.bos == BOS_TRUE;
    if (!source_begins_otherwise(config, tokenizer)) return;
    log_warn(
        "%s was trained with data.bos=%s, but its tokenizer, which is copied, %s: other programs, and smelt without data.bos=%s, begin "
        "texts as the tokenizer does",
        run, begins ? "true" : "false", begins ? "puts no token before a text" : "puts one before each text", begins ? "true" : "false");
}

static bool find_tokenizer(const char *run, const Config *config, RunTokenizer *found, Error *error) {
    SCOPED_FREE char *file = source_tokenizer(run, config);
    if (!file)
        return error_set(error, ERROR_USAGE,
            "%s was trained on token shards that do not record their tokenizer: put its tokenizer.json into RUN/tokenizer, or set "
            "tokenizer=none",
            run);
    found->bytes = !*file;
    Tokenizer *tokenizer = found->bytes ? NULL : tokenizer_open(file, error);
    if (!tokenizer && !found->bytes) return error_context(error, "the run's tokenizer (tokenizer=none omits it)");
    if (tokenizer) found->folder = memory_format("%.*s", (int)(strrchr(file, '/') - file), file);
    found->generation = generation_settings(run, config, tokenizer, error);
    if (found->generation) found->origin = describe_tokens(found->generation, tokenizer);
    name_other_beginning_than_trained(run, config, tokenizer);
    bool fits = found->generation && source_check_rows(config->model.vocabulary, tokenizer, *file ? file : "the byte tokenizer",
                                         "it belongs to another model; set tokenizer=none", error);
    tokenizer_free(tokenizer);
    return fits || error_context(error, "%s", run);
}

/* Returns a folder of adapters if it has a tokenizer of its own, as PEFT's users save it;
 * otherwise NULL. The caller frees it. */
static char *find_adapter_tokenizer(const char *in) {
    char *folder = adapter_is_folder(in) ? adapter_folder(in) : NULL;
    SCOPED_FREE char *file = folder ? tokenizer_find(folder) : NULL;
    if (file) return folder;
    free(folder);
    return NULL;
}

static bool check_adapter_tokenizer(const char *folder, const Config *config, Error *error) {
    Tokenizer *tokenizer = tokenizer_open(folder, error);
    bool fits = tokenizer && source_check_rows(config->model.vocabulary, tokenizer, folder,
                                 "its base has a different number of rows: give the base that it was trained with, as ADAPTER@BASE", error);
    tokenizer_free(tokenizer);
    return fits;
}

/* Refuses options that would be ignored: PEFT's folders are fp32 in one file. */
static bool check_adapter_options(const char *out, const ConvertOptions *options, Error *error) {
    static const char *const idle[] = {"dtype", "tokenizer", "shard_bytes", "tokens.add", NULL};
    if (out_kind(out) != OUT_FOLDER)
        return error_set(error, ERROR_USAGE, "adapter=true writes a folder: set an OUT that does not end in .gguf or .bin");
    return command_refuse_idle(
        &table, options, idle, "adapter=true writes one fp32 file, and a tokenizer only if it differs from the base's", error);
}

static bool convert_adapters(const char *in, const char *out, const Config *config, const ConvertOptions *options, Error *error) {
    int64_t step;
    if (!source_is_run(in)) return error_set(error, ERROR_USAGE, "%s is not a run: adapter=true writes only the adapters of a run", in);
    if (!check_adapter_options(out, options, error)) return false;
    if (!source_is_model_folder(config->init) || gguf_is_file(config->init))
        log_warn(
            "the base %s is not a model folder, but PEFT needs one: write it with smelt convert, and set base_model_name_or_path to it",
            config->init);
    SCOPED(run_tokenizer_free) RunTokenizer own = {0};
    bool differs;
    if (!adapter_tokenizer_differs(in, config, &differs, error) || (differs && !find_tokenizer(in, config, &own, error))) return false;
    HfExport tokenizer = {.config = &config->model, .source = own.folder, .origin = own.origin, .generation = own.generation};
    if (!adapter_write(in, config, differs ? &tokenizer : NULL, out, options->overwrite, &step, error)) return false;
    log_info("wrote the adapters of step %" PRId64 " of %s to %s%s", step, in, out,
        differs ? ", with the run's tokenizer and chat template, which differ from the base's" : "");
    return true;
}

/* -- Random weights ------------------------------------------------------------------------------------------------- */

/* Finds what a configuration's data.tokenizer names. */
static bool find_given_tokenizer(const Config *config, HfExport *export, Error *error) {
    const char *name = config->data.tokenizer;
    if (!*name || !strcmp(name, NO_TOKENIZER)) return true;
    export->bytes = !strcmp(name, BYTE_TOKENIZER);
    Tokenizer *tokenizer = export->bytes ? NULL : tokenizer_open(name, error);
    bool fits = (tokenizer || export->bytes) && source_check_rows(config->model.vocabulary, tokenizer, name,
                                                    "set model.vocabulary=0, which takes the tokenizer's size", error);
    tokenizer_free(tokenizer);
    export->source = export->bytes ? NULL : name;
    return fits || error_context(error, "data.tokenizer (tokenizer=none omits it)");
}

/* Writes the initial weights of a training with the configuration `in`. They are computed one
 * parameter at a time, so the memory is that of one file of OUT and the largest parameter. */
static bool convert_untrained(Invocation *invocation, Error *error) {
    const ConvertOptions *options = invocation->options;
    const char *in = invocation->words[0], *out = invocation->words[1];
    Config config;
    if (!options->mtp)
        return error_set(error, ERROR_USAGE, "mtp=false: %s is a configuration, which has model.mtp for this: set model.mtp=0", in);
    if (!source_read_untrained(in, &invocation->settings, &config, &invocation->strings, error) || !check_out(out, &config, options, error))
        return false;
    file_remove_partials_of(out);
    if (options->adapter || *options->tokens.add || out_kind(out) == OUT_LLMC)
        return error_set(error, ERROR_USAGE,
            "%s is a configuration, whose random weights can be written only as a folder or a GGUF file, without adapter=true and "
            "tokens.add: write a folder first, and convert that",
            in);
    bool half = options->dtype != CONVERT_FP32 && (options->dtype == CONVERT_BF16 || precision_is_bf16((Precision)config.precision));
    HfExport export = {.config = &config.model,
        .precision = half ? PRECISION_BF16 : PRECISION_FP32,
        .seed = (uint64_t)config.seed,
        .shard_bytes = options->shard_bytes,
        .fp8 = options->dtype == CONVERT_FP8,
        .mxfp4 = options->dtype == CONVERT_MXFP4};
    if (options->tokenizer != TOKENIZER_NONE && !find_given_tokenizer(&config, &export, error)) return false;
    if (!write_model(&export, out, options, error)) return false;
    log_info("wrote the model of %s to %s with random weights (seed=%" PRId64 ")", in, out, (int64_t)config.seed);
    return true;
}

static bool run_convert(Invocation *invocation, Error *error) {
    if (source_is_configuration(invocation->words[0])) return convert_untrained(invocation, error);
    if (invocation->settings.count)
        return error_set(error, ERROR_USAGE,
            "'%s' is a setting of a configuration, but %s is a model that has its own: only a configuration file as IN takes settings",
            invocation->settings.items[0], invocation->words[0]);
    const ConvertOptions *options = invocation->options;
    const char *in = invocation->words[0], *out = invocation->words[1];
    Config config;
    SCOPED(hf_release) HfModel origin = {0};
    SCOPED(run_tokenizer_free) RunTokenizer own = {0};
    if (!source_read_config(in, &config, &invocation->strings, error)) return false;
    if (!options->mtp && !leave_prediction_out(in, &config, error)) return false;
    if (!check_inputs(in, out, &config, error)) return false;
    file_remove_partials_of(out);
    if (options->adapter) return convert_adapters(in, out, &config, options, error);
    if (!check_out(out, &config, options, error)) return false;
    const char *base = adapter_is_folder(in) ? config.init : in; /* the folder with config.json and tokenizer */
    bool trained = source_is_run(base), folder = source_is_model_folder(base), given = options->tokenizer != TOKENIZER_NONE;
    if (folder && !hf_read(base, &origin, error)) return false;
    if (base != in && origin.config.mtp)
        log_warn("%s has a layer for multi-token prediction; the merged model does not get this layer", base);
    bool text = !model_makes_images(&config.model);
    SCOPED_FREE char *adapter = given && text ? find_adapter_tokenizer(in) : NULL;
    if (adapter && !check_adapter_tokenizer(adapter, &config, error)) return false;
    if (trained && given && text && !find_tokenizer(base, &config, &own, error)) return false;
    if (folder && given && text && !(own.generation = generation_settings(base, &config, NULL, error))) return false;
    bool same = options->dtype == CONVERT_SAME || options->dtype == CONVERT_FP8 || options->dtype == CONVERT_MXFP4;
    bool half = options->dtype == CONVERT_BF16 || (same && precision_is_bf16(config.precision));
    HfExport export = {.config = &config.model,
        .precision = half ? PRECISION_BF16 : PRECISION_FP32,
        .bytes = own.bytes || (origin.bytes && given && !trained),
        .shard_bytes = options->shard_bytes,
        .source = adapter           ? adapter
                  : folder && given ? base
                                    : own.folder,
        .origin = folder ? origin.content : own.origin,
        .generation = own.generation,
        .fp8 = options->dtype == CONVERT_FP8,
        .mxfp4 = options->dtype == CONVERT_MXFP4,
        .keep = folder && same && base == in};
    if (*options->tokens.add) return write_grown(in, out, &config, export, options, error);
    SCOPED(model_free) Model model = model_describe(&config.model, NULL, export.precision);
    if (folder && base == in && out_kind(out) != OUT_LLMC) return write_from_folder(in, out, model.graph, export, options, error);
    return write_from_memory(in, out, &config, model.graph, export, options, error);
}

const Command command_convert = {
    .name = "convert",
    .summary = "convert a run, folder or file to a Hugging Face folder or a GGUF file",
    .words = "IN OUT",
    .usage = "IN OUT [key=value ...]",
    .explanation =
        "Reads the newest checkpoint of a run (RUN), another one (RUN@STEP, RUN@best, or its folder), a Hugging Face folder, PEFT adapters "
        "with their base (ADAPTER, ADAPTER@BASE), a GGUF file or a GPT-2 file of llm.c.\nIf IN is a configuration "
        "file (CONFIG.yaml), the weights are random: those with which a training with these settings starts. Settings of the configuration "
        "may follow.\nWrites a Hugging Face folder; if OUT ends in "
        ".gguf, a GGUF file with tokenizer and chat template for llama.cpp; if OUT ends in .bin, a file of llm.c.\n",
    .table = &table,
    .options_size = sizeof(ConvertOptions),
    .takes_config = true,
    .run = run_convert,
};
