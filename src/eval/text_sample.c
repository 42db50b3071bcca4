/* Text that the model writes at an evaluation, so that users see what it has learned. A MODEL_SCORE
 * program of the session, which shares its weights and activations, recomputes the whole text for
 * each token: this needs no memory for a cache and works with every layout of the weights, like an
 * evaluation. Texts are shorter than the program's sequence. They are its last rows, and each
 * earlier row is a separate document that no other row sees.
 *
 * The first rank that has the head (rank 0 unless there is a pipeline) draws the tokens and tells
 * the others. All ranks run the program if each has a part of the weights, with ZeRO 3 and in
 * pipelines; otherwise only that rank does. The draws are a function of the seed and the position
 * in the text: training's random streams are unaffected, and evaluations differ only by their
 * weights. Called by the training loop. */
#include "eval/text_sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "infer/generate.h"
#include "infer/utf8.h"

enum {
    STOPPED = -1, /* instead of a token: a stop was requested */
    BROKEN = -2,  /* a logit is not finite */
};
static const double temperature = 0.8;

/* -- Tokens to text ------------------------------------------------------------------------------------------------ */

typedef struct SampleText {
    const Corpus *corpus;
    TokenizerDecoder decoder;
    Utf8Stream stream;
} SampleText;

/* Replaces zeros, which would end the text. */
static void put_piece(FILE *out, const char *piece, int length) {
    for (int i = 0; i < length; i++)
        if (piece[i]) putc(piece[i], out);
        else fputs("\xef\xbf\xbd", out);
}

/* Returns UTF-8; the caller frees it. */
static char *decode_sample(SampleText *text, const int32_t *tokens, size_t count, bool last) {
    char *all = NULL, piece[UTF8_OUTPUT];
    size_t size;
    FILE *out = open_memstream(&all, &size);
    if (!out) memory_refused(0);
    for (size_t t = 0; t < count; t++) {
        char byte = (char)tokens[t];
        size_t length = 1;
        const char *bytes = text->corpus->tokenizer ? tokenizer_decode(&text->decoder, tokens[t], &length) : &byte;
        for (size_t i = 0; i < length; i++) put_piece(out, piece, utf8_put(&text->stream, (uint8_t)bytes[i], piece));
    }
    if (last) put_piece(out, piece, utf8_finish(&text->stream, piece));
    fclose(out);
    return all;
}

/* -- The prompt ---------------------------------------------------------------------------------------------------- */

static int32_t end_of_text(const Corpus *corpus) { return corpus->bytes ? BYTE_SEPARATOR : tokenizer_end_of_text(corpus->tokenizer); }

static bool is_blank_prompt(const Corpus *corpus, const TokenIds *prompt) {
    SampleText decoded = {.corpus = corpus};
    if (corpus->tokenizer) decoded.decoder = tokenizer_decoder(corpus->tokenizer, true);
    SCOPED_FREE char *text = decode_sample(&decoded, prompt->items, prompt->count, true);
    return text[strspn(text, " \t\r\n")] == '\0';
}

/* Takes tokens of the validation data from `from` on, up to the end of a document. */
static bool take_tokens(const Session *session, const Corpus *corpus, int64_t from, int64_t count, TokenIds *prompt, Error *error) {
    int32_t tokens[SAMPLE_PROMPT_TOKENS];
    uint8_t marks[SAMPLE_PROMPT_TOKENS];
    if (!shard_set_read(&corpus->valid, from, count, session->config->model.vocabulary, tokens, marks, error)) return false;
    prompt->count = 0;
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] != end_of_text(corpus)) token_ids_append(prompt, tokens[i]);
        if (marks[i] & TOKEN_ENDS && prompt->count > 0) break;
    }
    return true;
}

/* Takes the first tokens of the validation data that are not blank. */
static bool take_prompt(const Session *session, const Corpus *corpus, int64_t most, TokenIds *prompt, Error *error) {
    enum { TRIES = 64 };
    const int64_t count = int_min(int_min(most, SAMPLE_PROMPT_TOKENS), corpus->valid.token_count);
    bool blank = true;
    for (int64_t from = 0; blank && from < TRIES * count && from + count <= corpus->valid.token_count; from += count) {
        if (!take_tokens(session, corpus, from, count, prompt, error)) return false;
        blank = is_blank_prompt(corpus, prompt);
    }
    return true;
}

static bool encode_prompt(const Corpus *corpus, const char *text, TokenIds *prompt, Error *error) {
    if (corpus->bytes) {
        for (const char *at = text; *at; at++) token_ids_append(prompt, (uint8_t)*at);
        return true;
    }
    TokenizerEncoder *encoder = tokenizer_encoder_open(corpus->tokenizer);
    bool encoded = tokenizer_encode(encoder, text, strlen(text), TOKENIZER_ADD_SPECIAL, prompt, error);
    tokenizer_encoder_free(encoder);
    return encoded;
}

static bool check_prompt(const Session *session, const TokenIds *prompt, Error *error) {
    const ModelConfig *model = &session->config->model;
    if ((int64_t)prompt->count >= session->sampling.model.length)
        return error_set(error, ERROR_USAGE, "%zu tokens leave no room in model.context=%lld: use a shorter text", prompt->count,
            (long long)model->context);
    for (size_t i = 0; i < prompt->count; i++)
        if (prompt->items[i] >= model->vocabulary)
            return error_set(
                error, ERROR_USAGE, "token %d is not below model.vocabulary=%lld", prompt->items[i], (long long)model->vocabulary);
    return true;
}

bool text_sample_prompt(const Session *session, const Corpus *corpus, TokenIds *prompt, Error *error) {
    const char *text = session->config->eval.prompt;
    if (!session->sampling.model.graph || !corpus->has_valid || !(corpus->bytes || corpus->tokenizer)) return true;
    int64_t rows = session->sampling.model.length, most = int_max(rows / 2, rows - session->config->eval.sample_tokens);
    if (!*text) return take_prompt(session, corpus, most, prompt, error) || error_context(error, "the validation data");
    return (encode_prompt(corpus, text, prompt, error) && check_prompt(session, prompt, error)) || error_context(error, "eval.prompt");
}

/* -- Drawing ------------------------------------------------------------------------------------------------------- */

typedef struct Loading {
    const Program *program;
    const TokenIds *text;
} Loading;

static void load_sample(void *context, int64_t microbatch) {
    const Loading *loading = context;
    const Model *model = &loading->program->model;
    Executor *executor = loading->program->executor;
    int32_t *tokens = executor_tensor(executor, model->tokens), *positions = executor_tensor(executor, model->positions);
    int64_t before = model->length - (int64_t)loading->text->count;
    (void)microbatch;
    for (int64_t i = 0; i < model->length; i++) {
        tokens[i] = i < before ? 0 : loading->text->items[i - before];
        positions[i] = i < before ? 0 : (int32_t)(i - before);
    }
}

static bool run_text(const Program *program, const TokenIds *text, Error *error) {
    program_run(program, &(ProgramWork){.microbatches = 1, .load = load_sample, .context = &(Loading){program, text}});
    return executor_finish(program->executor, error);
}

static int64_t draw_token(const Session *session, const Corpus *corpus, size_t count) {
    const Config *config = session->config;
    size_t bytes = precision_bytes(config->precision, TYPE_WIDE);
    int64_t vocabulary = config->model.vocabulary;
    int64_t known = int_min(vocabulary, corpus->bytes ? BYTE_VOCABULARY : tokenizer_vocabulary(corpus->tokenizer));
    SCOPED_FREE void *wide = memory_allocate((size_t)vocabulary * bytes);
    SCOPED_FREE double *logits = memory_allocate((size_t)known * sizeof *logits);
    executor_read(session->sampling.executor, session->sampling.model.logits, wide);
    for (int64_t i = 0; i < known; i++) {
        logits[i] = element_get(bytes, wide, i);
        if (!isfinite(logits[i])) return BROKEN;
    }
    const Sampling sampling = {.temperature = temperature, .top_p = 1, .seed = config->seed};
    return sample_token(logits, known, &sampling, rng_uniform(config->seed, RNG_STREAM_SAMPLE, (uint64_t)count));
}

/* Returns the first rank of the stage that has the head. */
static int drawing_rank(const Session *session) {
    Mesh mesh = *session->mesh;
    for (int axis = 0; axis < AXIS_COUNT; axis++) mesh.at[axis] = axis == AXIS_PP ? mesh.size[axis] - 1 : 0;
    return mesh_rank(&mesh);
}

/* Draws the next token, the same on all ranks, or STOPPED or BROKEN. */
static bool next_token(const TextSampleInput *input, const TokenIds *text, int64_t *token, Error *error) {
    Session *session = input->session;
    int root = drawing_rank(session);
    bool leads = comm_rank(session->comm) == root, alone = mesh_size(session->mesh, AXES_ROWS | AXES_EXPERTS | MESH(AXIS_PP)) == 1;
    if ((leads || !alone || session->layout->stage == 3) && !run_text(&session->sampling, text, error)) return false;
    if (leads) *token = input->stop->signal ? STOPPED : draw_token(session, input->corpus, text->count);
    return comm_host_broadcast(session->comm, "sample", token, 1, COMM_I64, root, error);
}

static bool draw_all(const TextSampleInput *input, TokenIds *text, TextSample *sample, Error *error) {
    const Session *session = input->session;
    int64_t token = 0, most = int_min(session->config->eval.sample_tokens, session->sampling.model.length - (int64_t)text->count);
    while (sample->tokens < most) {
        if (!next_token(input, text, &token, error)) return false;
        sample->stopped = token == STOPPED;
        if (token < 0 || token == end_of_text(input->corpus)) break;
        token_ids_append(text, (int32_t)token);
        sample->tokens++;
        watchdog_alive(input->watchdog, session->step);
    }
    return true;
}

bool text_sample(const TextSampleInput *input, TextSample *sample, Error *error) {
    Session *session = input->session;
    SCOPED(token_ids_free) TokenIds text = {0};
    double start = log_seconds();
    *sample = (TextSample){0};
    for (size_t i = 0; i < input->prompt->count; i++) token_ids_append(&text, input->prompt->items[i]);
    if (!session->sampling.exchange && !program_start_beside(&session->sampling, &session->training, error)) return false;
    exchange_finish_weights(session->training.exchange);
    if (!draw_all(input, &text, sample, error)) return false;
    SampleText decoded = {.corpus = input->corpus};
    if (input->corpus->tokenizer) decoded.decoder = tokenizer_decoder(input->corpus->tokenizer, true);
    sample->prompt = decode_sample(&decoded, text.items, input->prompt->count, false);
    sample->text = decode_sample(&decoded, text.items + input->prompt->count, text.count - input->prompt->count, true);
    sample->seconds = log_seconds() - start;
    return true;
}

void text_sample_free(TextSample *sample) {
    free(sample->prompt);
    free(sample->text);
    *sample = (TextSample){0};
}
