/* Packs text into shards of tokens, or feeds it to the training of a tokenizer. pack_internal.h
 * describes the path of the text, packer_internal.h the files that share the work. Here the inputs are listed, the tokenizer, the
 * chat template and the output are opened, and the steps run in order. */
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/byte_tokenizer.h"
#include "data/data_internal.h"
#include "data/packer_internal.h"
#include "data/shard_set.h"

/* Returns the local folder of an OUTPUT in a bucket; the caller frees. */
static char *staging_of(const PackOptions *options) {
    SCOPED_FREE char *whole = memory_format("%.*s", (int)path_length(options->output), options->output);
    if (options->staging && *options->staging) return memory_copy_string(options->staging);
    return memory_format("%s.upload", strrchr(whole, '/') + 1);
}

/* Connects the parts to their places in the bucket. */
static bool open_uploads(Packer *packer, const char *output, Error *error) {
    const bool split = packer->valid.name;
    const int length = (int)path_length(output);
    if (!starts_with(output, S3_SCHEME)) return true;
    SCOPED_FREE char *train = memory_format("%.*s%s", length, output, split ? "-train" : "");
    SCOPED_FREE char *valid = memory_format("%.*s-valid", length, output);
    return (packer->train.upload = pack_upload_open(train, error)) && (!split || (packer->valid.upload = pack_upload_open(valid, error)));
}

/* Refuses an input that exists under one of the names of the output. */
static bool refuse_output(const Packer *packer, const char *input, Error *error) {
    const char *prefixes[] = {packer->train.name, packer->valid.name}, *suffixes[] = {"", ".bin", ".idx"};
    bool output = false;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3 && prefixes[i]; j++) {
            SCOPED_FREE char *name = memory_format("%s%s", prefixes[i], suffixes[j]);
            output = output || (file_same(input, name) && (j > 0 || packer->trainer || packer_in_folder(packer)));
        }
    return !output || error_set(error, ERROR_USAGE, "%s is both INPUT and OUTPUT: choose another OUTPUT", input);
}

static bool open_pack_tokenizer(Packer *packer, Error *error) {
    const char *path = packer->options.tokenizer;
    if (path && *path && !(packer->tokenizer = tokenizer_open(path, error))) return false;
    if (!tokenizer_set_bos(packer->tokenizer, packer->options.bos, error)) return false;
    packer->report.bos = packer->tokenizer && packer->options.bos != BOS_FALSE && tokenizer_bos(packer->tokenizer)->count;
    return !packer->tokenizer ||
           (tokenizer_end_of_text(packer->tokenizer) >= 0 ||
               error_set(error, ERROR_DATA, "%s has no end-of-document token: set eos_token in a tokenizer_config.json in the same folder",
                   path));
}

/* Warns if answers have no end token, for example with ChatML and a tokenizer without <|im_end|>:
 * generation would not stop after an answer. */
static void warn_endless(const Packer *packer) {
    ChatEncoder *encoder = chat_encoder_open(packer->chat);
    if (packer->tokenizer && chat_has_template(packer->chat) && chat_answer_end(encoder) < 0)
        log_warn("the chat template ends an answer without a special token, so a model cannot learn where to stop");
    chat_encoder_free(encoder);
}

/* Opens the chat templates; their special tokens are the tokenizer's. */
static bool open_chat_template(Packer *packer, Error *error) {
    const PackOptions *options = &packer->options;
    ChatOptions chat = {.source = options->tokenizer ? options->tokenizer : "",
        .template = options->template ? options->template : "",
        .turns = options->turns,
        .special = options->special,
        .end_token = packer->tokenizer ? tokenizer_end_of_text(packer->tokenizer) : BYTE_SEPARATOR};
    if (!pack_is_chat(options->format)) return true;
    packer->chat = chat_open(&chat, packer->tokenizer, error);
    if (packer->chat) packer->report.chat = chat_identity(packer->chat);
    if (packer->chat) warn_endless(packer);
    return packer->chat != NULL;
}

static Packer *packer_open(const PackOptions *options, TokenizerTrainer *trainer, Error *error) {
    if (!pack_check_options(options, error)) return tokenizer_trainer_free(trainer), NULL;
    Packer *packer = memory_allocate(sizeof *packer);
    bool split = options->valid_fraction > 0;
    packer->options = *options;
    if (starts_with(options->output, S3_SCHEME)) packer->options.output = packer->staging = staging_of(options);
    if (!options->field) packer->options.field = "text";
    if (options->tokens && !*options->tokens) packer->options.tokens = NULL;
    if (packer->options.tokens) packer->options.format = PACK_JSON;
    packer->trainer = trainer;
    packer->lock = packer->next_lock = -1;
    const char *output = packer->options.output;
    packer->train.name = memory_format("%.*s%s", (int)path_length(output), output, split ? "-train" : "");
    packer->train.place = memory_copy_string(packer->train.name);
    if (split) {
        packer->valid.name = memory_format("%.*s-valid", (int)path_length(output), output);
        packer->valid.place = memory_copy_string(packer->valid.name);
    }
    packer->long_hash = XXH3_createState();
    if (!packer->long_hash) memory_refused(sizeof(XXH64_hash_t));
    return packer;
}

/* Frees the packer, and returns its counts after a success. Returns `good`. */
static bool packer_close(Packer *packer, bool good, PackResult *result) {
    *result = good ? packer->report.result : (PackResult){0};
    result->format = packer->options.format;
    shard_writer_cancel(packer->train.writer);
    shard_writer_cancel(packer->valid.writer);
    free(packer->train.name);
    free(packer->valid.name);
    free(packer->train.place);
    free(packer->valid.place);
    free(packer->staging);
    pack_upload_close(packer->train.upload);
    pack_upload_close(packer->valid.upload);
    record_reader_free(packer->reader);
    tokenizer_trainer_free(packer->trainer);
    chat_free(packer->chat);
    tokenizer_free(packer->tokenizer);
    pack_files_free(&packer->files);
    pack_report_free(&packer->report);
    hash_set_free(packer->seen);
    drop_log_free(packer->dropped);
    file_list_free(&packer->against.names);
    restore_free(packer->restore);
    file_close(&packer->hashes);
    if (packer->lock >= 0) close(packer->lock);
    if (packer->next_lock >= 0) close(packer->next_lock);
    XXH3_freeState(packer->long_hash);
    free(packer->new_hashes);
    free(packer->held);
    free(packer);
    return good;
}

/* Returns the folder of OUTPUT; "" for the current one. The caller frees. */
static char *output_folder(const char *output) {
    const char *slash = strrchr(output, '/');
    return memory_format("%.*s", slash ? (int)(slash + 1 - output) : 0, output);
}

static bool make_folder(const char *folder, Error *error) {
    return !*folder || file_make_folder(folder, error) || error_recode(error, ERROR_USAGE);
}

/* Refuses a shard and a folder of shards with the same name: a reader of the name would get the
 * shard, and ignore the folder. */
static bool refuse_twin(const Packer *packer, Error *error) {
    const char *names[] = {packer->train.name, packer->valid.name};
    for (int i = 0; i < 2 && names[i]; i++) {
        SCOPED_FREE char *index = memory_format("%s.idx", names[i]), *folder = memory_format("%s/", names[i]);
        SCOPED_FREE char *record = memory_format("%s/pack.json", names[i]);
        if (packer_in_folder(packer) ? file_exists(index) : file_exists(record) || shard_set_exists(folder))
            return error_set(error, ERROR_USAGE, "%s already exists as %s: choose another OUTPUT, or move it", names[i],
                packer_in_folder(packer) ? "a single shard" : "a folder of shards");
    }
    return true;
}

static bool restores(const Packer *packer) { return packer->options.restore && *packer->options.restore; }

/* Opens the list of the packing whose repeats are restored, and counts what it kept as seen. */
static bool open_restore(Packer *packer, const char *folder, Error *error) {
    json_auto_t *settings = pack_report_settings(&packer->report, &packer->options);
    const char *restore = packer->options.restore;
    packer->restore = restore_open(restore, &packer->files, packer->report.inputs, settings, folder, error);
    if (packer->restore) packer->report.restore = restore_identity(packer->restore);
    return packer->restore && dedup_read(&packer->against, restore, packer->options.dedup == PACK_DEDUP_NEAR, packer->seen, error);
}

/* Opens the output: the folders, or a shard for each part. */
static bool open_output(Packer *packer, Error *error) {
    SCOPED_FREE char *beside = output_folder(packer->train.name);
    if (!refuse_twin(packer, error) || !make_folder(beside, error)) return false;
    packer->places = pack_logs_drops(&packer->options);
    packer->seen = hash_set_open(packer_in_folder(packer) ? packer->train.name : *beside ? beside : ".", packer->places);
    packer->against.first_file = packer->files.list.count;
    packer->against.output = packer->train.name;
    if (packer->options.against &&
        !dedup_read(&packer->against, packer->options.against, packer->options.dedup == PACK_DEDUP_NEAR, packer->seen, error))
        return false;
    if (restores(packer) && !open_restore(packer, *beside ? beside : ".", error)) return false;
    packer->report.against = packer->against.identity;
    if (packer_in_folder(packer)) return packer_open_folder(packer, error);
    if (!packer_open_shards(packer, error)) return false;
    SCOPED_FREE char *dropped = packer_path(packer, PACK_DROPPED);
    return packer->done || !packer->places || (packer->dropped = drop_log_open(dropped, error));
}

static bool read_all_inputs(Packer *packer, Error *error) {
    packer->pipeline = (PipelineOptions){.field = packer->options.field,
        .tokens = packer->options.tokens,
        .invalid = packer->options.invalid,
        .tokenizer = packer->tokenizer,
        .special = packer->options.special,
        .text_only = packer->trainer,
        .near = packer->options.dedup == PACK_DEDUP_NEAR,
        .chat = packer->chat,
        .pairs = packer->options.format == PACK_PREFERENCE,
        .filter = packer->options.filter,
        .restore = packer->restore};
    packer->last_file = packer->report.position.file - (packer->report.position.byte == 0);
    packer->reader = record_reader_open(&packer->options, &packer->files, pipeline_cut, &packer->pipeline, packer->report.position);
    bool good = pipeline_run(&packer->pipeline, packer->reader, packer_take_block, packer, error);
    progress_finish(&packer->progress);
    const char *records = record_reader_first_records(packer->reader);
    if (records && *packer->options.separator)
        log_warn("separator=%s divides text only: each record of %s is a document", packer->options.separator, records);
    pack_files_warn(&packer->files);
    if (good) packer_warn(packer);
    return good;
}

static bool list_inputs(Packer *packer, Error *error) {
    if (!pack_files_list(
            &packer->files, packer->options.inputs, packer->options.held_out, packer->trainer ? NULL : packer->options.output, error))
        return false;
    for (const char *const *input = packer->options.inputs; *input; input++)
        if (!refuse_output(packer, *input, error)) return false;
    return pack_report_open(&packer->report, &packer->options, &packer->files, error);
}

/* Sets *waits if a packing is complete, and waits for its names. */
static bool find_waiting(const Packer *packer, bool *waits, Error *error) {
    PackFound found;
    SCOPED_FREE char *record = packer_path(packer, PACK_RECORD), *next = shard_next(packer_in_folder(packer) ? packer->train.name : record);
    SCOPED_FREE char *path = memory_format("%s%s", next, packer_in_folder(packer) ? "/" PACK_RECORD : "");
    bool read = pack_report_find(path, &found, error);
    *waits = found == PACK_FOUND_WHOLE;
    return read;
}

/* Gives the files of a complete packing their names after an input was removed. *error says that
 * the input is absent, and is kept if no packing of these inputs and settings waits. */
static bool finish_without_input(Packer *packer, Error *error) {
    Error missing = *error;
    bool waits = false, ended = false;
    if (missing.finding != FINDING_ABSENT) return false;
    if (!find_waiting(packer, &waits, error)) return false;
    if (waits) {
        pack_report_name(&packer->report, &packer->options, &packer->files);
        if (!open_pack_tokenizer(packer, error) || !open_chat_template(packer, error) ||
            !(packer_in_folder(packer) ? packer_resume_folder(packer, &ended, error) : packer_resume_shards(packer, &ended, error)) ||
            !packer_was_this_one(packer, error))
            return false;
    }
    if (packer->done)
        log_warn("%s was already packed completely, so its files were only renamed; an input is missing (%s)", packer->train.name,
            missing.message);
    else *error = missing;
    return packer->done;
}

/* Decides what format=auto is, by the records of the inputs. */
static bool resolve_format(Packer *packer, Error *error) {
    if (packer->options.format != PACK_AUTO) return true;
    packer->options.format = pack_find_format(&packer->options, &packer->files);
    if (pack_is_chat(packer->options.format))
        log_info("%s holds %s: packing by the chat template", packer->options.inputs[0],
            packer->options.format == PACK_CHAT ? "conversations" : "pairs of answers");
    return pack_check_idle(&packer->options, error);
}

static bool pack_all(Packer *packer, Error *error) {
    if (!list_inputs(packer, error)) return finish_without_input(packer, error);
    bool opened = resolve_format(packer, error) && open_pack_tokenizer(packer, error) && open_chat_template(packer, error) &&
                  open_output(packer, error);
    return opened &&
           (packer->done || (read_all_inputs(packer, error) && packer_check_kept(packer, error) && packer_finish_lists(packer, error) &&
                                packer_finish_shards(packer, error) && packer_remove_old_lists(packer, error) &&
                                (!packer_in_folder(packer) || packer_end_folder(packer, error))));
}

bool pack_text(const PackOptions *options, PackResult *result, Error *error) {
    *result = (PackResult){0};
    Packer *packer = packer_open(options, NULL, error);
    return packer && packer_close(packer, open_uploads(packer, options->output, error) && pack_all(packer, error), result);
}

bool pack_train_tokenizer(
    const PackOptions *options, const TokenizerTraining *training, PackResult *result, int32_t *learned, Error *error) {
    *result = (PackResult){0};
    if (starts_with(options->output, S3_SCHEME))
        return error_set(error, ERROR_USAGE, "OUTPUT %s is in a bucket, but a tokenizer is a local file: give its path", options->output);
    TokenizerTrainer *trainer = tokenizer_trainer_open(training, error);
    Packer *packer = trainer ? packer_open(options, trainer, error) : NULL;
    if (!packer) return false;
    SCOPED_FREE char *folder = output_folder(options->output);
    bool good = list_inputs(packer, error) && make_folder(folder, error) && read_all_inputs(packer, error) &&
                tokenizer_trainer_finish(packer->trainer, options->output, learned, error);
    return packer_close(packer, good, result);
}
