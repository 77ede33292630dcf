;;; check.el --- The real org-ai against a node  -*- lexical-binding: t; -*-
;; emacs --batch -L DIRECTORY-OF-ORG-AI -l check.el, with CLIENT_URL and CLIENT_KNOWN as for the others.
(require 'json)
(require 'org-ai-openai)

(let* ((known (with-temp-buffer
                (insert-file-contents (getenv "CLIENT_KNOWN"))
                (json-parse-buffer :object-type 'alist)))
       (hello (alist-get 'Hello (alist-get 'texts known)))
       (end (+ (float-time) 30)))
  (setq org-ai-openai-chat-endpoint (concat (getenv "CLIENT_URL") "/chat/completions")
        org-ai-openai-api-token "any")
  (with-temp-buffer
    (let ((target (current-buffer)))
      (org-ai-stream-request
       :messages [(:role "user" :content "Hello")] :model "pippin-demo" :temperature 0
       :callback (lambda (response) (org-ai--insert-stream-response nil target response t)))
      (while (and (< (float-time) end) (not (string-suffix-p "[ME]: " (buffer-string))))
        (accept-process-output nil 0.05)))
    (let ((want (format "\n[AI]: %s\n\n[ME]: " hello)))
      (unless (string= (buffer-string) want)
        (message "got %S, not %S" (buffer-string) want)
        (kill-emacs 1))))
  (princ "{\"check\": \"emacs\", \"why\": \"\"}\n"))
