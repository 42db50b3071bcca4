/* Folders of pictures with captions. */
#pragma once

#include "base/error.h"

/* Refuses a folder that has pictures and, except hidden files, only their captions: texts beside
 * them with their names, or tables. The message has the commands that encode and train it. Any other
 * path passes. ERROR_USAGE. */
bool picture_folder_refuse(const char *path, Error *error);
