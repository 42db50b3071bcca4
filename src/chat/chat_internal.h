/* Shared by reading a record and encoding it. */
#pragma once

#include "chat/chat.h"

/* Limits of a conversation: its messages, and the bytes rendered for it. The text is rendered again
 * for each answer, so the cost is quadratic in the length. */
enum { CHAT_MESSAGES = 4096 };
#define CHAT_RENDERED_BYTES ((size_t)1 << 32)

/* Returns a record in the one shape that this folder reads (chat_shapes.c), for the caller to
 * release. A record of an unknown shape is returned unchanged. */
json_t *chat_shape(const json_t *record);
/* Returns the question of Alpaca's form as a message: instruction, and input below it if there is
 * some. The caller releases it. */
json_t *chat_question(const json_t *record);

/* A record of a data set: either messages or two texts. */
typedef struct ChatRecord {
    json_t *shaped;                             /* the record that the rest is borrowed from; owned */
    json_t *messages;                           /* owned; NULL: the record is texts */
    const json_t *tools, *documents, *settings; /* borrowed from the record, or NULL */
    bool unread[CHAT_PARTS];                    /* parts beside the messages that smelt does not read */
    bool decode;                                /* decode arguments of tool calls to objects */
    size_t decoded_arguments, text_arguments;   /* as in ChatCounts */
    size_t first;                               /* the first message whose answers are trained on */
    const json_t *prompt, *completion;          /* texts, borrowed from the record */
} ChatRecord;
/* Reads a record. Messages get the form in which transformers passes them to a template: without
 * null members, and with an assistant's thoughts under each of their names. With `decode`, the
 * arguments of a tool call become an object if they are its JSON text. ERROR_DATA names the missing
 * member. */
bool chat_record_read(ChatRecord *record, const json_t *json, bool decode, Error *error);
void chat_record_free(ChatRecord *record);
/* Returns a member of a record, or NULL if it is null: `datasets` writes null for each member that
 * only other records have. */
const json_t *chat_member(const json_t *record, const char *name);
/* Returns whether a message is a system message; unless `system` is NULL, with that content. */
bool chat_begins_with_system(const json_t *first, const json_t *system);
/* Returns whether each item of the list `name` is a message that can be trained on. ERROR_DATA
 * names the first other item. */
bool chat_check_messages(const json_t *list, const char *name, Error *error);
/* Sets "the record has no WHAT, but only its members"; returns false. */
bool chat_refuse_shape(const json_t *record, const char *what, Error *error);
/* Refuses members that smelt does not read although they change the meaning of a record: images,
 * video, audio, and weights. */
bool chat_check_members(const json_t *record, Error *error);
