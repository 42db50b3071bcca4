/* `smelt eval MODEL QUESTIONS.jsonl`: questions as JSON lines, with choices (eval_questions.c), or
 * with answers that the model writes (eval_answers.c). */
#pragma once

#include <jansson.h>

#include "app/generation.h"

/* How a text is matched with the answer; base/match.h. */
typedef enum AnswerMatch { ANSWER_EXACT, ANSWER_NUMBER, ANSWER_BOXED, ANSWER_REGEX } AnswerMatch;

typedef struct QuestionOptions {
    int64_t shots;              /* questions at the start of the file that precede each other one, with their answers */
    int64_t most;               /* questions to score; 0: all */
    bool json;                  /* print a JSON line for each question, and one for the sums */
    int64_t tokens;             /* most of an answer */
    int match;                  /* AnswerMatch */
    const char *pattern, *stop; /* of ANSWER_REGEX; as generation_read_stops takes it */
    const char *template;       /* questions are messages of a chat: "own", "chatml" or a file; "": they are texts */
    int64_t threads;
    int device, precision;
} QuestionOptions;

typedef enum QuestionKind { QUESTION_NONE, QUESTION_CHOICES, QUESTION_ANSWERS } QuestionKind;
/* Returns what the file's first line is: an object with `choices`, or with a question and an answer. */
QuestionKind questions_kind(const char *path);
/* Scores the choices of every question with the model of `folder`, and prints how often the likeliest
 * one is the answer. */
bool eval_questions(
    Inference *inference, const char *folder, const char *path, Config *config, const QuestionOptions *options, Error *error);
/* Lets the model answer every question, and prints how often it gives the answer. */
bool eval_answers(Inference *inference, const char *folder, const char *path, Config *config, const QuestionOptions *options, Error *error);
/* Returns whether a record has a question and an answer. */
bool answers_record(const json_t *record);

/* -- Shared by both ------------------------------------------------------------------------------------------------ */

extern const char *const question_names[]; /* members with the text of a question; ends with NULL */
/* Returns the first of the members that a record has. */
const json_t *question_member(const json_t *record, const char *const names[]);
/* Returns a text without spaces at its end, for the caller to free; NULL: no text, or one with zeros. */
char *question_words(const json_t *value);
bool question_encode(ModelText *text, const char *words, TokenIds *tokens, Error *error);
void question_print(json_t *object); /* as a line; releases it */
