/* The files of a tokenizer: where they are in a folder, and copies of them, which travel with what they made. Owns
 * nothing beyond a call. Called when shards are packed, when a run starts, and by whoever reads either. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "token/token_internal.h"

enum { FILE_LIMIT = 256 << 20, TOKENIZER_NAMES = 3 };
static const char *const names[] = {
    "tokenizer.json", "tokenizer.model", "tekken.json", "tokenizer_config.json", "chat_template.jinja"}; /* the first three hold tokens */

char *tokenizer_find(const char *folder) {
    for (int i = 0; i < TOKENIZER_NAMES; i++) {
        char *path = memory_format("%s/%s", folder, names[i]);
        if (file_exists(path)) return path;
        free(path);
    }
    return NULL;
}

/* The file that a path or a folder means; the caller frees. */
static char *file_of(const char *path) {
    char *found = tokenizer_find(path);
    return found ? found : memory_copy_string(path);
}

/* A file in the folder of another one; the caller frees. */
static char *beside(const char *file, const char *name) {
    const char *slash = strrchr(file, '/');
    return memory_format("%.*s%s", slash ? (int)(slash + 1 - file) : 0, file, name);
}

/* The name that other programs look for. */
static const char *name_of(const char *content, size_t size) {
    static const char tekken[] = "\"default_num_special_tokens\"";
    bool json = content[strspn(content, " \t\r\n")] == '{';
    return names[!json ? 1 : memmem(content, size, tekken, sizeof tekken - 1) ? 2 : 0];
}

char *tokenizer_read(const char *path, TokenizerPart part, int64_t *bytes, Error *error) {
    SCOPED_FREE char *file = file_of(path);
    SCOPED_FREE char *config = beside(file, names[TOKENIZER_NAMES]);
    if (gguf_is_file(file)) return gguf_tokenizer(file, part == TOKENIZER_CONFIG, bytes, error);
    *bytes = 0;
    if (part == TOKENIZER_TOKENS && !file_exists(file)) {
        error_set(error, ERROR_DATA,
            "cannot open %s: No such file or directory; smelt downloads nothing: give a " TOKENIZER_FILES
            ", or a folder with one, such as 'hf download "
            "OWNER/MODEL tokenizer.json --local-dir FOLDER' makes",
            file);
        return NULL;
    }
    if (part == TOKENIZER_CONFIG && !file_exists(config)) return memory_copy_string("");
    char *content = file_read(part == TOKENIZER_CONFIG ? config : file, FILE_LIMIT, bytes, error);
    if (!content) error_recode(error, ERROR_DATA);
    return content;
}

char *tokenizer_chat_template(const char *path) {
    SCOPED_FREE char *file = file_of(path);
    char *template = gguf_is_file(file) ? NULL : beside(file, names[TOKENIZER_NAMES + 1]);
    if (template && file_exists(template)) return template;
    free(template);
    return NULL;
}

bool tokenizer_put_template(const char *folder, const char *source, Error *error) {
    SCOPED_FREE char *to = memory_format("%s/%s", folder, names[TOKENIZER_NAMES + 1]);
    return file_write(to, source, (int64_t)strlen(source), error);
}

/* Newer folders have the chat template in a file of its own. */
static bool copy_template(const char *path, const char *folder, Error *error) {
    SCOPED_FREE char *template = tokenizer_chat_template(path), *content = template ? file_read(template, FILE_LIMIT, NULL, error) : NULL;
    if (template && !content) return error_recode(error, ERROR_DATA);
    return !content || tokenizer_put_template(folder, content, error);
}

bool tokenizer_copy(const char *path, const char *folder, Error *error) {
    int64_t length = 0, config_length = 0;
    SCOPED_FREE char *content = tokenizer_read(path, TOKENIZER_TOKENS, &length, error);
    SCOPED_FREE char *config = content ? tokenizer_read(path, TOKENIZER_CONFIG, &config_length, error) : NULL;
    if (!config) return false;
    SCOPED_FREE char *to = memory_format("%s/%s", folder, name_of(content, (size_t)length));
    SCOPED_FREE char *config_to = memory_format("%s/%s", folder, names[TOKENIZER_NAMES]);
    return file_make_folder(folder, error) && file_write(to, content, length, error) &&
           (config_length == 0 || file_write(config_to, config, config_length, error)) && copy_template(path, folder, error);
}

bool tokenizer_copies(const char *name) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* What the tokenizer_config.json beside a file says of its regular expression; "" when nothing. The caller frees. */
static char *pattern_beside(const char *path) {
    Error ignored;
    int64_t length;
    SCOPED_FREE char *config = tokenizer_read(path, TOKENIZER_CONFIG, &length, &ignored);
    char *pattern = config ? read_config_text(config, (size_t)length, "pattern") : NULL;
    return pattern ? pattern : memory_copy_string("");
}

bool tokenizer_differs(const char *path, const char *other) {
    Error ignored = {0};
    if (!*path || !*other) return *path != *other;
    int64_t length, other_length;
    SCOPED_FREE char *content = tokenizer_read(path, TOKENIZER_TOKENS, &length, &ignored);
    SCOPED_FREE char *other_content = content ? tokenizer_read(other, TOKENIZER_TOKENS, &other_length, &ignored) : NULL;
    if (!other_content) return false;
    if (length != other_length || memcmp(content, other_content, (size_t)length) != 0) return true;
    if (content[0] == '{') return false;
    SCOPED_FREE char *pattern = pattern_beside(path), *other_pattern = pattern_beside(other);
    return strcmp(pattern, other_pattern) != 0;
}
