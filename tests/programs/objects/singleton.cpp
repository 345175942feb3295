// A broken singleton: every field that is used races, for one reason.
// ANYTHING
// CAUSES 1
#include <cstdio>
#include <pthread.h>

struct Settings {
    int width, height, depth;
    long limit;
    const char *name;
};

static Settings *settings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Settings *get()
{
    if (!settings) {
        pthread_mutex_lock(&lock);
        if (!settings) {
            Settings *made = new Settings();
            made->width = 640;
            made->height = 480;
            made->depth = 24;
            made->limit = 1000;
            made->name = "usual";
            settings = made;
        }
        pthread_mutex_unlock(&lock);
    }
    return settings;
}

static void *user(void *)
{
    long sum = 0;
    for (int i = 0; i < 20; i++) {
        Settings *mine = get();
        sum += mine->width;
        sum += mine->height;
        sum += mine->depth;
        sum += mine->limit;
        sum += mine->name[0];
    }
    return (void *)sum;
}

int main()
{
    pthread_t threads[3];
    for (pthread_t &thread : threads)
        pthread_create(&thread, nullptr, user, nullptr);
    for (pthread_t thread : threads)
        pthread_join(thread, nullptr);
    std::puts("ok");
}
