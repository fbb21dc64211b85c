// The JDK's own HttpClient against a gateway, as it comes: over http it offers h2c with every request. Prints one JSON object.
// java JavaClient.java <base url> <key>
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

public class JavaClient {
    public static void main(String[] given) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        String asked = "{\"model\": \"tiny-chat\", \"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]";
        var whole = client.send(request(given, asked + "}"), BodyHandlers.ofString());
        var streamed = client.send(request(given, asked + ", \"stream\": true}"), BodyHandlers.ofLines());
        long events = streamed.body().filter(line -> line.startsWith("data: ")).count();
        System.out.printf("{\"status\": %d, \"answer\": %s, \"events\": %d}%n", whole.statusCode(), whole.body(), events);
    }

    private static HttpRequest request(String[] given, String body) {
        return HttpRequest.newBuilder(URI.create(given[0] + "/chat/completions"))
            .header("Authorization", "Bearer " + given[1]).header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body)).build();
    }
}
