/* What reading a record and encoding it share. */
#pragma once

#include "chat/chat.h"

/* The text is rendered anew for each answer, so a conversation costs the square of its length: what one may have of
 * messages, and of bytes that are rendered for it. */
enum { CHAT_MESSAGES = 4096 };
#define CHAT_RENDERED_BYTES ((size_t)1 << 32)

/* A record of a data set: either messages, or two texts. */
typedef struct ChatRecord {
    json_t *messages;                           /* owned; NULL: the record is texts */
    const json_t *tools, *documents, *settings; /* of the record, or NULL */
    bool history;                               /* earlier turns beside an instruction, which are not read */
    bool functions;                             /* OpenAI's older form of tools, which is not read */
    bool decode;                                /* arguments of tool calls become objects */
    size_t decoded_arguments, text_arguments;   /* as in ChatCounts */
    size_t first;                               /* the first message whose answers are trained on */
    const json_t *prompt, *completion;          /* texts, of the record */
} ChatRecord;
/* Messages become what transformers gives to a template: without members that are null, and with an assistant's thoughts under each of
 * their names. With `decode`, arguments of tool calls that are JSON text of an object become that object. ERROR_DATA says what the
 * record lacks. */
bool chat_record_read(ChatRecord *record, const json_t *json, bool decode, Error *error);
void chat_record_free(ChatRecord *record);
/* A member of a record; NULL for null too, which `datasets` writes for each member that another record has. */
const json_t *chat_member(const json_t *record, const char *name);
/* Whether each item of the list `name` is a message that can be trained on; not so: ERROR_DATA names it. */
bool chat_check_messages(const json_t *list, const char *name, Error *error);
/* Refuses what belongs to a whole record, is not read, and would make it another: pictures and sounds, and a weight. */
bool chat_check_members(const json_t *record, Error *error);
