/* The files of a tokenizer: where they are in a folder, the combined content of the side files, and
 * copies of all of them. A side file is absent, readable or an error; an error is never taken as
 * absence. Owns nothing beyond a call. Called when shards are packed, when a run starts, and by
 * readers of both. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "token/token_internal.h"

enum { FILE_LIMIT = 256 << 20 };
/* The first of these files in a folder holds its tokens. */
static const char *const token_files[] = {"tokenizer.json", "tokenizer.model", "tekken.json"};
#define CONFIG_FILE "tokenizer_config.json"
#define TEMPLATE_FILE "chat_template.jinja"
#define TEMPLATE_FOLDER "additional_chat_templates" /* has NAME.jinja for each additional template */
static const char *const side_files[] = {CONFIG_FILE, "special_tokens_map.json", "added_tokens.json"};
enum { TOKEN_FILES = sizeof token_files / sizeof *token_files, SIDE_FILES = sizeof side_files / sizeof *side_files };

char *tokenizer_find(const char *folder) {
    for (int i = 0; i < TOKEN_FILES; i++) {
        char *path = memory_format("%s/%s", folder, token_files[i]);
        if (file_exists(path)) return path;
        free(path);
    }
    return NULL;
}

/* Returns the file that a path or a folder means, which may not exist; the caller frees. */
static char *file_of(const char *path) {
    char *found = tokenizer_find(path);
    if (found) return found;
    return file_kind(path, NULL) == FILE_FOLDER ? memory_format("%s/%s", path, token_files[0]) : memory_copy_string(path);
}

/* Returns the path of a file in the same folder as `file`; the caller frees. */
static char *beside(const char *file, const char *name) {
    const char *slash = strrchr(file, '/');
    return memory_format("%.*s%s", slash ? (int)(slash + 1 - file) : 0, file, name);
}

/* Returns whether a failure means that the file or folder is absent. This is not an error here, so it is cleared: later readers keep
 * the first error. */
static bool is_absent(Error *error) {
    if (error->finding != FINDING_ABSENT) return error_recode(error, ERROR_DATA);
    *error = (Error){0};
    return true;
}

/* Reads a file that may be absent; *content is then NULL. */
static bool read_optional(const char *path, char **content, int64_t *bytes, Error *error) {
    *content = file_read(path, FILE_LIMIT, bytes, error);
    return *content || is_absent(error);
}

/* Lists the templates of a folder that may be absent, by name without ".jinja", for
 * file_list_free. */
static bool list_templates(const char *folder, FileList *names, Error *error) {
    static const char ending[] = ".jinja";
    SCOPED(file_list_free) FileList files = {0};
    if (!file_list(folder, &files, error)) return is_absent(error);
    for (const FileEntry *file = files.entries; file < files.entries + files.count; file++)
        if (ends_with(file->name, ending))
            file_list_add(names, memory_format("%.*s", (int)(strlen(file->name) - strlen(ending)), file->name), file->kind);
    return true;
}

/* -- Side files ---------------------------------------------------------------------------------------------------- */

static bool read_beside(const char *file, const char *name, json_t **object, Error *error) {
    SCOPED_FREE char *path = beside(file, name);
    return json_read_optional(path, object, ERROR_DATA, error);
}

/* Reads the two files of old folders if tokenizer_config.json has no added_tokens_decoder. The
 * special tokens of special_tokens_map.json take precedence over those of tokenizer_config.json;
 * added_tokens.json gives the texts and ids of added tokens. */
static bool add_old_files(const char *file, json_t *config, Error *error) {
    json_t *special = NULL, *added = NULL;
    bool good = read_beside(file, "special_tokens_map.json", &special, error) && read_beside(file, "added_tokens.json", &added, error);
    bool counts = good && !json_object_get(config, "added_tokens_decoder");
    if (counts && special) json_object_update(config, special);
    good = good && (!counts || !added || side_tokens_from_old(config, added, error));
    json_decref(special);
    json_decref(added);
    return good;
}

static bool add_template_file(json_t *list, const char *name, const char *path, Error *error) {
    int64_t bytes;
    char *source;
    if (!read_optional(path, &source, &bytes, error)) return false;
    json_t *text = source ? json_stringn(source, (size_t)bytes) : NULL;
    if (text) json_array_append_new(list, json_pack("{s:s, s:o}", "name", name, "template", text));
    bool good = !source || text || error_set(error, ERROR_DATA, "the chat template %s is not UTF-8: save it as UTF-8", path);
    free(source);
    return good;
}

/* Templates in files replace those of tokenizer_config.json; they are stored in its form for
 * several templates. */
static bool add_templates(const char *file, json_t *config, Error *error) {
    SCOPED(file_list_free) FileList names = {0};
    SCOPED_FREE char *plain = beside(file, TEMPLATE_FILE), *folder = beside(file, TEMPLATE_FOLDER);
    json_auto_t *list = json_array();
    bool good = add_template_file(list, "default", plain, error) && list_templates(folder, &names, error);
    for (size_t i = 0; good && i < names.count; i++) {
        SCOPED_FREE char *path = memory_format("%s/%s.jinja", folder, names.entries[i].name);
        good = add_template_file(list, names.entries[i].name, path, error);
    }
    if (json_array_size(list)) json_object_set(config, "chat_template", list);
    return good;
}

static json_t *read_side_files(const char *file, Error *error) {
    json_t *config = NULL;
    if (!read_beside(file, CONFIG_FILE, &config, error)) return NULL;
    if (!config) config = json_object();
    if (add_old_files(file, config, error) && add_templates(file, config, error)) return config;
    json_decref(config);
    return NULL;
}

/* -- All files ------------------------------------------------------------------------------------------------------- */

/* Reads model_type, because it decides which tokenizer class transformers uses. */
static bool read_model_type(const char *file, char **type, Error *error) {
    json_t *model = NULL;
    bool good = read_beside(file, "config.json", &model, error);
    const char *given = json_string_value(json_object_get(model, "model_type"));
    *type = memory_copy_string(given ? given : "");
    json_decref(model);
    return good;
}

static bool take_made(TokenizerFiles *files, const json_t *made, size_t flags, Error *error) {
    char *text = json_dumps(made, flags);
    if (!text) return error_set(error, ERROR_DATA, "a token is not UTF-8, and a tokenizer.json can hold only UTF-8");
    free(files->tokens);
    files->tokens = text;
    files->bytes = (int64_t)strlen(text);
    return files->made = true;
}

static bool read_gguf_tokenizer(TokenizerFiles *files, const char *file, Error *error) {
    json_auto_t *made = gguf_tokenizer(file, false, error);
    files->config = made ? gguf_tokenizer(file, true, error) : NULL;
    return files->config && take_made(files, made, JSON_INDENT(1), error);
}

/* Converts a SentencePiece model with side files to a tokenizer.json, as transformers does. */
static bool use_side_files(TokenizerFiles *files, const char *file, Error *error) {
    SCOPED_FREE char *type = NULL;
    if (!memchr(files->tokens, 0, (size_t)files->bytes) || !json_object_size(files->config)) return true;
    if (!read_model_type(file, &type, error)) return false;
    json_auto_t *made = sentencepiece_json(files->tokens, (size_t)files->bytes, files->config, type, error);
    return (made && take_made(files, made, JSON_COMPACT, error)) || error_context(error, "%s", file);
}

bool tokenizer_files(TokenizerFiles *files, const char *path, Error *error) {
    SCOPED_FREE char *file = file_of(path);
    *files = (TokenizerFiles){0};
    if (gguf_is_file(file) ? read_gguf_tokenizer(files, file, error)
                           : read_optional(file, &files->tokens, &files->bytes, error) && (files->config = read_side_files(file, error)) &&
                                 (!files->tokens || use_side_files(files, file, error)))
        return true;
    tokenizer_files_free(files);
    return false;
}

void tokenizer_files_free(TokenizerFiles *files) {
    free(files->tokens);
    json_decref(files->config);
    *files = (TokenizerFiles){0};
}

json_t *tokenizer_config(const char *path, Error *error) {
    TokenizerFiles files;
    if (!tokenizer_files(&files, path, error)) return NULL;
    free(files.tokens);
    return files.config;
}

bool tokenizer_refuse_absent(const char *path, Error *error) {
    SCOPED_FREE char *file = file_of(path), *words = beside(file, "vocab.json");
    return error_set(error, ERROR_DATA, "cannot open %s: No such file or directory; %s", file,
        file_exists(words) ? "smelt does not read the vocab.json and merges.txt in this folder: load and save the tokenizer with "
                             "transformers to get a tokenizer.json"
                           : "smelt does not download files: give a " TOKENIZER_FILES
                             ", or a folder with one; 'hf download OWNER/MODEL tokenizer.json --local-dir FOLDER' downloads one");
}

/* A list with the default template alone means the same as its text. */
static const json_t *chat_templates(const json_t *config) {
    const json_t *given = json_object_get(config, "chat_template"), *first = json_array_get(given, 0);
    const char *name = json_string_value(json_object_get(first, "name"));
    return json_array_size(given) == 1 && name && !strcmp(name, "default") ? json_object_get(first, "template") : given;
}

bool tokenizer_has_other_template(const char *path, const char *base, bool *other, Error *error) {
    json_auto_t *own = tokenizer_config(path, error), *theirs = own ? tokenizer_config(base, error) : NULL;
    const json_t *templates = chat_templates(own);
    *other = templates && !json_equal(templates, chat_templates(theirs));
    return theirs != NULL;
}

char *tokenizer_read(const char *path, int64_t *bytes, Error *error) {
    TokenizerFiles files;
    *bytes = 0;
    if (!tokenizer_files(&files, path, error)) return NULL;
    json_decref(files.config);
    *bytes = files.bytes;
    if (!files.tokens) tokenizer_refuse_absent(path, error);
    return files.tokens;
}

/* -- Copies ---------------------------------------------------------------------------------------------------------- */

/* Returns the name that other programs look for. */
static const char *content_name(const char *content, size_t size) {
    static const char tekken[] = "\"default_num_special_tokens\"";
    bool json = content[strspn(content, " \t\r\n")] == '{';
    return token_files[!json ? 1 : memmem(content, size, tekken, sizeof tekken - 1) ? 2 : 0];
}

char *tokenizer_chat_template(const char *path) {
    SCOPED_FREE char *file = file_of(path);
    char *template = gguf_is_file(file) ? NULL : beside(file, TEMPLATE_FILE);
    if (template && file_exists(template)) return template;
    free(template);
    return NULL;
}

bool tokenizer_put_template(const char *folder, const char *source, Error *error) {
    SCOPED_FREE char *to = memory_format("%s/" TEMPLATE_FILE, folder),
                     *tools = memory_format("%s/" TEMPLATE_FOLDER "/tool_use.jinja", folder);
    return file_remove(tools, error) && file_write(to, source, (int64_t)strlen(source), error);
}

static bool copy_optional(const char *from, const char *to, Error *error) {
    int64_t bytes;
    char *content;
    if (!read_optional(from, &content, &bytes, error)) return false;
    bool copied = !content || file_write(to, content, bytes, error);
    free(content);
    return copied;
}

bool tokenizer_copy_templates(const char *path, const char *folder, Error *error) {
    SCOPED(file_list_free) FileList names = {0};
    SCOPED_FREE char *file = file_of(path), *plain = beside(file, TEMPLATE_FILE), *from = beside(file, TEMPLATE_FOLDER);
    SCOPED_FREE char *to = memory_format("%s/" TEMPLATE_FILE, folder), *to_folder = memory_format("%s/" TEMPLATE_FOLDER, folder);
    bool good = file_remove(to, error) && file_remove(to_folder, error) && copy_optional(plain, to, error) &&
                list_templates(from, &names, error) && (!names.count || file_make_folder(to_folder, error));
    for (size_t i = 0; good && i < names.count; i++) {
        SCOPED_FREE char *source = memory_format("%s/%s.jinja", from, names.entries[i].name),
                         *target = memory_format("%s/%s.jinja", to_folder, names.entries[i].name);
        good = copy_optional(source, target, error);
    }
    return good;
}

bool tokenizer_copy_side_files(const char *path, const char *folder, Error *error) {
    SCOPED_FREE char *file = file_of(path);
    bool good = true;
    for (int i = 0; good && i < SIDE_FILES; i++) {
        SCOPED_FREE char *source = beside(file, side_files[i]), *target = memory_format("%s/%s", folder, side_files[i]);
        good = copy_optional(source, target, error);
    }
    return good && tokenizer_copy_templates(path, folder, error);
}

/* Writes the configuration of a converted tokenizer; templates in files beside the tokenizer are
 * copied. */
static bool write_tokenizer_config(const TokenizerFiles *files, const char *path, const char *folder, Error *error) {
    SCOPED_FREE char *to = memory_format("%s/" CONFIG_FILE, folder), *template = memory_format("%s/" TEMPLATE_FILE, folder);
    if (!gguf_is_file(path) && !tokenizer_copy_templates(path, folder, error)) return false;
    if (file_exists(template)) json_object_del(files->config, "chat_template");
    SCOPED_FREE char *text = json_format(files->config);
    return text && file_write(to, text, (int64_t)strlen(text), error);
}

bool tokenizer_copy(const char *path, const char *folder, Error *error) {
    SCOPED(tokenizer_files_free) TokenizerFiles files = {0};
    if (!tokenizer_files(&files, path, error)) return false;
    if (!files.tokens) return tokenizer_refuse_absent(path, error);
    SCOPED_FREE char *to = memory_format("%s/%s", folder, content_name(files.tokens, (size_t)files.bytes));
    return file_make_folder(folder, error) && file_write(to, files.tokens, files.bytes, error) &&
           (files.made ? write_tokenizer_config(&files, path, folder, error) : tokenizer_copy_side_files(path, folder, error));
}

bool tokenizer_copies(const char *name) {
    for (int i = 0; i < TOKEN_FILES; i++)
        if (!strcmp(name, token_files[i])) return true;
    for (int i = 0; i < SIDE_FILES; i++)
        if (!strcmp(name, side_files[i])) return true;
    return !strcmp(name, TEMPLATE_FILE) || !strcmp(name, TEMPLATE_FOLDER);
}

/* Compares the members of the side files that decide ids; for a tokenizer.json, no member does. */
static bool same_side_tokens(const TokenizerFiles *files, const TokenizerFiles *others) {
    static const char *const decide[] = {"pattern", "added_tokens_decoder"};
    bool same = true;
    for (int i = 0; i < 2 && files->tokens[0] != '{'; i++) {
        const json_t *own = json_object_get(files->config, decide[i]), *theirs = json_object_get(others->config, decide[i]);
        same = same && (own || theirs ? json_equal(own, theirs) : true);
    }
    return same;
}

bool tokenizer_differs(const char *path, const char *other, bool *differs, Error *error) {
    SCOPED(tokenizer_files_free) TokenizerFiles files = {0}, others = {0};
    *differs = !*path != !*other;
    if (!*path || !*other) return true;
    if (!tokenizer_files(&files, path, error) || !tokenizer_files(&others, other, error)) return false;
    if (files.tokens && others.tokens)
        *differs = files.bytes != others.bytes || memcmp(files.tokens, others.tokens, (size_t)files.bytes) != 0 ||
                   !same_side_tokens(&files, &others);
    return true;
}
