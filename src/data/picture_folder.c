/* Recognizes folders of pictures with captions (picture_folder.h), by the names of their files. Owns
 * nothing. Called for a run's data and for inputs of packing, which would else train on the captions
 * alone. */
#include "data/picture_folder.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"

static const char *const of_pictures[] = {".png", ".jpg", ".jpeg", ".webp", ".PNG", ".JPG", ".JPEG", ".WEBP", NULL};

static bool ends_with_any(const char *name, const char *const *endings) {
    for (; *endings; endings++)
        if (ends_with(name, *endings)) return true;
    return false;
}

/* Returns whether a file is a table, or has the name of a picture beside it. */
static bool is_caption(const char *folder, const char *name) {
    static const char *const tables[] = {".csv", ".jsonl", NULL}, *const texts[] = {".txt", ".caption", NULL};
    bool beside = false;
    for (const char *const *ending = of_pictures; *ending && !beside && ends_with_any(name, texts); ending++) {
        SCOPED_FREE char *picture = memory_format("%s/%.*s%s", folder, (int)(strrchr(name, '.') - name), name, *ending);
        beside = file_kind(picture, NULL) == FILE_REGULAR;
    }
    return beside || ends_with_any(name, tables);
}

bool picture_folder_refuse(const char *path, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    Error ignored = {0};
    long long pictures = 0;
    int length = (int)path_length(path);
    if (file_kind(path, NULL) != FILE_FOLDER || !file_list(path, &list, &ignored)) return true;
    for (size_t i = 0; i < list.count; i++) {
        const char *name = list.entries[i].name;
        if (*name == '.') continue;
        if (list.entries[i].kind != FILE_REGULAR) return true;
        bool picture = ends_with_any(name, of_pictures);
        if (!picture && !is_caption(path, name)) return true;
        pictures += picture;
    }
    return !pictures ||
           error_set(error, ERROR_USAGE,
               "%s is a folder of %lld picture%s, and models of images train on encodings. Encode it: smelt train --example "
               "encode-images.py > encode-images.py; python3 encode-images.py flux FLUX.1-dev %s %.*s-encodings --size 1024. Then train: "
               "smelt train --example lora-flux1-dev > lora.yaml; smelt train lora.yaml init=FLUX.1-dev/transformer "
               "data.train=%.*s-encodings run=RUN",
               path, pictures, plural(pictures), path, length, path, length, path);
}
