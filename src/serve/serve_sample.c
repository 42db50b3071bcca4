/* A sample's tokens with their places in its text, and texts of prompts. */
#include "serve/serve_sample_internal.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/scope.h"

void serve_scores_add(ServeScores *scores, const EngineToken *token, int64_t top) {
    array_append(scores->tokens, scores->count, *token);
    scores->tokens[scores->count - 1].top = NULL;
    for (int64_t i = 0; i < top; i++)
        array_append(scores->top, scores->top_count, i < token->top_count ? token->top[i] : (EngineScore){.token = -1});
}

void serve_scores_free(ServeScores *scores) {
    free(scores->tokens);
    free(scores->top);
}

void serve_sample_begin(ServeSample *s, const ServeModel *model) { s->text = generated_text(model->tokenizer); }

bool serve_sample_add(ServeSample *s, const ServeRequest *request, const EngineToken *token) {
    s->begun = true;
    array_append(s->offsets, s->count, s->text.characters);
    serve_scores_add(&s->scores, token, request->top);
    return generated_text_add(&s->text, &request->stops, token->token);
}

void serve_sample_end(ServeSample *s, EngineEnd end) {
    generated_text_finish(&s->text);
    s->end = end;
    s->ended = true;
}

void serve_sample_free(ServeSample *s) {
    serve_scores_free(&s->scores);
    free(s->offsets);
    generated_text_free(&s->text);
}

void serve_offsets(const ServeModel *model, const TokenIds *ids, size_t *offsets) {
    SCOPED(generated_text_free) GeneratedText text = generated_text(model->tokenizer);
    for (size_t i = 0; i < ids->count; i++) {
        offsets[i] = text.characters;
        generated_text_add(&text, &(StopTexts){0}, ids->items[i]);
    }
}

char *serve_decode(const ServeModel *model, const TokenIds *ids, size_t *size) {
    GeneratedText text = generated_text(model->tokenizer);
    for (size_t i = 0; i < ids->count; i++) generated_text_add(&text, &(StopTexts){0}, ids->items[i]);
    generated_text_finish(&text);
    *size = text.size;
    return text.bytes;
}
