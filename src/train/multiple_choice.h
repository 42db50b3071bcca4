/* Multiple-choice questions in llm.c's evaluation files (HellaSwag, MMLU): a header of 256 int32 (number, version,
 * examples), then every example as uint16: 65535, bytes of the example, index, label, endings, tokens of the context
 * and the context, and for each ending its tokens and the ending. */
#pragma once

#include "model/model.h"

enum { CHOICE_ENDINGS = 16 }; /* of an example, at most; HellaSwag has 4 */

typedef struct ChoiceText {
    const uint16_t *tokens;
    int64_t count;
} ChoiceText; /* at least one token */

typedef struct ChoiceExample {
    ChoiceText context, ending[CHOICE_ENDINGS];
    int endings, label; /* how many endings, at least 2; the index of the right one */
} ChoiceExample;

/* Invariant: every example has 2 to CHOICE_ENDINGS endings, and its label is the index of one of them. */
typedef struct MultipleChoice {
    ChoiceExample *examples;
    int64_t count, longest; /* the most tokens of a context with one of its endings */
    int32_t max_token;
    char *content; /* of the file */
} MultipleChoice;

/* Whether `path` is a file that opens with the format's number. */
bool multiple_choice_is_file(const char *path);
/* Reads the file and checks every example. ERROR_DATA naming the example and what is wrong with it. */
bool multiple_choice_open(MultipleChoice *set, const char *path, Error *error);
void multiple_choice_close(MultipleChoice *set); /* also of a zeroed or failed one */

typedef struct ChoiceScore {
    double loss[CHOICE_ENDINGS]; /* -log likelihood of an ending after its context, in nats */
    int chosen, chosen_mean;     /* the first ending with the least loss, and with the least loss per token */
} ChoiceScore;

/* Scores the first `count` examples, of which each group of the ranks in `comm`, those of the model's mesh, takes its share;
 * all ranks get all scores. `model` is a MODEL_EVALUATE program of one sequence of at least set->longest -
 * 1 tokens, with weights in place; tokens are below its vocabulary. ERROR_NUMERICS when a loss is not finite. */
bool multiple_choice_evaluate(
    const Model *model, Executor *executor, Comm *comm, const MultipleChoice *set, int64_t count, ChoiceScore *scores, Error *error);
